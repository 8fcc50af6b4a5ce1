"""Layers of a configuration: which files, in which order, and whose tokenizer remains."""

from pathlib import Path

import pytest

from services.config.compose import CONF, compose, experiment
from services.config.matrix import matrix_experiments
from services.training.plan.read_files import configuration_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.yaml"


def write(file: Path, base: str, rest: str) -> str:
    """Write an experiment of one's own over a shipped one; return what chooses it."""
    file.write_text(f"# @package _global_\ndefaults:\n  - {base}\n\n{rest}\n")
    return f"experiment={file}"


def test_the_files_are_those_that_an_experiment_is_built_on_in_their_order(file: Path) -> None:
    files = configuration_files([write(file, "commongen_ppo", "seed: 3"), "algorithm=grpo"])
    assert files == [
        *("conf/model/default.yaml", "conf/cluster/default.yaml", "conf/train.yaml"),
        *(f"conf/experiment/rl4lms/{name}.yaml" for name in ("float32", "on_policy")),
        "conf/matrix/commongen.yaml",
        str(file),
    ]


def test_a_component_has_no_file() -> None:
    overrides = ["experiment=commongen_ppo", "algorithm=grpo", "task=my_module:Capitals"]
    assert configuration_files(overrides)[-1] == "conf/matrix/commongen.yaml"


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ("{path: some/folder}", {"path": "some/folder"}),
        ("{path: some/folder, tokenizer: t5-base}", {"path": "some/folder", "tokenizer": "t5-base"}),
        ("{path: lvwerra/gpt2-imdb}", {"path": "lvwerra/gpt2-imdb", "tokenizer": "gpt2"}),
        ("{revision: main}", {"path": "lvwerra/gpt2-imdb", "tokenizer": "gpt2", "revision": "main"}),
    ],
)
def test_a_model_that_a_file_names_anew_brings_its_own_tokenizer(
    model: str, left: dict[str, str], file: Path
) -> None:
    assert experiment("imdb_supervised").model == {"path": "lvwerra/gpt2-imdb", "tokenizer": "gpt2"}
    chosen = write(file, "imdb_supervised", f"model: {model}")
    assert compose([chosen])["model"] == left
    again = compose([chosen, "model.path=another", "model.tokenizer=its/own"])["model"]
    assert (again["path"], again["tokenizer"]) == ("another", "its/own")


def test_no_shipped_experiment_loses_a_tokenizer() -> None:
    names = [name for name, cell in matrix_experiments(CONF).items() if cell.says["model"].get("tokenizer")]
    assert len(names) > 15
    for name in names:
        assert experiment(name).model.get("tokenizer"), name
