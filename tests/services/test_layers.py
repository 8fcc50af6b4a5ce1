"""What a configuration is laid together of: which files, in which order, and whose tokenizer remains."""

from pathlib import Path

import pytest

from services.compose import CONF, choices_of, compose, experiment
from services.plan_sources import configuration_files


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own.yaml"


def write(file: Path, base: str, rest: str) -> str:
    """Write an experiment of one's own over a shipped one; return what chooses it."""
    file.write_text(f"# @package _global_\ndefaults:\n  - {base}\n\n{rest}\n")
    return f"experiment={file}"


def test_the_files_are_those_that_an_experiment_is_built_on_in_their_order(own: Path) -> None:
    found = configuration_files([write(own, "commongen_ppo", "seed: 3"), "algorithm=grpo"])
    assert found[-6:] == [
        *(f"conf/experiment/rl4lms/{name}.yaml" for name in ("float32", "commongen", "on_policy")),
        "conf/experiment/commongen_ppo.yaml",
        str(own),
        "conf/algorithm/grpo.yaml",
    ]
    assert {"conf/train.yaml", "conf/task/commongen.yaml"} <= {*found}
    assert "conf/algorithm/ppo.yaml" not in found


def test_a_choice_that_is_the_experiments_already_stays_under_it() -> None:
    found = configuration_files(["experiment=commongen_ppo", "algorithm=ppo"])
    assert found[-1] == "conf/experiment/commongen_ppo.yaml" and "conf/algorithm/ppo.yaml" in found
    assert "conf/task" not in str(configuration_files(["task=my_module:Capitals"]))


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
    model: str, left: dict[str, str], own: Path
) -> None:
    assert experiment("imdb_supervised").model == {"path": "lvwerra/gpt2-imdb", "tokenizer": "gpt2"}
    chosen = write(own, "imdb_supervised", f"model: {model}")
    assert compose([chosen])["model"] == left
    again = compose([chosen, "model.path=another", "model.tokenizer=its/own"])["model"]
    assert (again["path"], again["tokenizer"]) == ("another", "its/own")


def test_no_shipped_experiment_loses_a_tokenizer() -> None:
    for name in choices_of("experiment"):
        said = (CONF / "experiment" / f"{name}.yaml").read_text()
        if "\n  tokenizer: " in said:
            assert experiment(name).model.get("tokenizer"), name
