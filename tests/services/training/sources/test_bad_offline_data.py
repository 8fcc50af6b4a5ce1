"""Data that can't be learned from, given to `whetstone annotate` and `train`: what is said, with counts."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.scores import Sample
from contracts.settings import Settings
from services import cli
from services.config.compose import run_settings
from services.training.sources.annotated_data import other_reference, other_values, with_iterations
from services.training.sources.data_needs import needs_of
from tests.models import make_tiny_model

HERE = "tests.services.training.sources.test_bad_offline_data"


class Fickle(Settings):
    """The last number, but NaN for 13 and nothing at all for 14."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        if any(sample.text == "14" for sample in samples):
            raise ValueError("never 14")
        return [math.nan if sample.text == "13" else float(sample.text.split()[-1]) for sample in samples]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    """(exit code, all that was said, in one line) of a command."""

    def run(*words: str) -> tuple[int, str]:
        code = cli.main(list(words))
        captured = capsys.readouterr()
        return code, " ".join((captured.out + captured.err).split())

    return run


def pairs(file: Path, *rows: tuple[str, str]) -> str:
    return written(
        file, [{"prompt": f"{i} 1", "chosen": one, "rejected": two} for i, (one, two) in enumerate(rows)]
    )


def responses(file: Path, *texts: str) -> str:
    return written(file, [{"prompt": f"{i} 1", "response": text} for i, text in enumerate(texts)])


def written(file: Path, rows: list[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def annotate(source: str, output: Path, *more: str) -> list[str]:
    """One row after another, as the reward sees them."""
    common = ["executor=here", "learner.device=cpu", "rollout.engine=transformers", "rollout.max_tokens=4"]
    return [
        "annotate",
        f"data.files={{train: {source}, validation: {source}}}",
        f"output={output}",
        *common,
        *more,
    ]


def train(algorithm: str, data: Path, model: Path, *more: str) -> list[str]:
    common = [
        "task=increasing_numbers",
        "rollout.max_tokens=4",
        "learner.device=cpu",
        f"output_dir={data}/runs",
    ]
    return ["train", f"algorithm={algorithm}", f"data={data}", f"model.path={model}", *common, *more]


def test_pairs_of_equal_responses(say: Any, model: Path, tmp_path: Path) -> None:
    source = pairs(tmp_path / "some.jsonl", ("5", "5"), ("6", "7"), ("8", "8"))
    code, output = say(*annotate(source, tmp_path / "out", f"reference={model}"))
    assert code == 0
    assert "2 responses; left out: 2 prompts whose chosen and rejected responses are equal" in output
    source = pairs(tmp_path / "all.jsonl", ("5", "5"), ("8", "8"))
    code, output = say(*annotate(source, tmp_path / "none", f"reference={model}"))
    assert (
        code == 2
        and "no usable response; left out: {'prompts whose chosen and" in output
        and "equal': 2" in output
    )


def test_rewards_that_are_missing_or_no_number(say: Any, model: Path, tmp_path: Path) -> None:
    reward = f"reward=[{{name: '{HERE}:Fickle'}}]"
    some = responses(tmp_path / "some.jsonl", "5", "13", "14", "8")
    code, output = say(
        *annotate(some, tmp_path / "out", reward, f"reference={model}", "reward_servers.default.batch_size=1")
    )
    assert code == 0 and "2 of 4 responses could not be scored, and training leaves them out" in output
    column = pq.read_table(tmp_path / "out" / "annotated.parquet")["reward.Fickle"].to_pylist()
    assert column == [5.0, None, None, 8.0]


@pytest.mark.parametrize("broken", [None, math.nan, math.inf])
def test_a_file_whose_rewards_were_spoilt(say: Any, model: Path, tmp_path: Path, broken: Any) -> None:
    source = responses(tmp_path / "some.jsonl", "5", "6")
    say(*annotate(source, tmp_path / "out", "reward=length", f"reference={model}"))
    file = tmp_path / "out" / "annotated.parquet"
    table = pq.read_table(file)
    place = table.column_names.index("reward.length")
    pq.write_table(table.set_column(place, "reward.length", pa.array([broken] * 2, pa.float64())), file)
    code, output = say(*train("wbc", tmp_path / "out", model))
    assert code == 2 and "none of 2 responses can be learned from: 2 not scored" in output


def test_no_advantage_is_positive(say: Any, model: Path, tmp_path: Path) -> None:
    source = responses(tmp_path / "some.jsonl", *["5"] * 4)
    reward = "reward=[{name: length, target: 50}]"
    value = ("value=true", "value.head=mean", "value.max_value=null", "value.num_epochs=1")
    code, output = say(*annotate(source, tmp_path / "out", reward, f"reference={model}", *value))
    assert code == 0
    file = tmp_path / "out" / "annotated.parquet"
    table = pq.read_table(file)
    high = pa.array([9.0] * 4, pa.float64())
    pq.write_table(table.set_column(table.column_names.index("value"), "value", high), file)
    code, output = say(*train("a_lol", tmp_path / "out", model))
    assert code == 2 and "0 of 4 advantages are above 0, the highest is -" in output


def test_responses_that_are_cut_to_nothing(say: Any, model: Path, tmp_path: Path) -> None:
    """An end token alone is nothing to learn."""
    source = responses(tmp_path / "some.jsonl", "<eos>", "6", "<eos>")
    code, output = say(*annotate(source, tmp_path / "out", "reward=length", f"reference={model}"))
    assert code == 0 and "2 of 3 responses have no token but the end" in output
    source = responses(tmp_path / "all.jsonl", "<eos>", "<eos>")
    code, output = say(*annotate(source, tmp_path / "all", "reward=length", f"reference={model}"))
    assert code == 2 and "all 2 responses are cut to nothing" in output
    say(*annotate(source, tmp_path / "bare", "reward=length"))
    code, output = say(*train("wbc", tmp_path / "bare", model))
    assert code == 2 and "all 2 responses are cut to nothing; raise rollout.max_tokens" in output


def test_a_reference_that_is_not_the_model_trained_is_told(say: Any, model: Path, tmp_path: Path) -> None:
    """Only where its log-probabilities are used; a copy of the folder is the same model."""
    source = responses(tmp_path / "some.jsonl", "5", "6")
    say(*annotate(source, tmp_path / "out", "reward=length", f"reference={model}"))
    other = make_tiny_model(tmp_path / "other", seed=1, sharpness=3.0)
    shutil.copytree(model, tmp_path / "copy")

    def refusal(algorithm: str, path: Path) -> str | None:
        words = train(algorithm, tmp_path / "out", path, "iterations=1")[1:]
        run = run_settings(words)
        assert run.data is not None
        return other_reference(run.data, needs_of(run.algorithm, run.reward, run.data), run.model)

    assert refusal("wbc", other) is None
    message = refusal("dpo", other)
    assert message is not None and f"reference={model}, and the files of model.path={other} differ" in message
    assert refusal("dpo", tmp_path / "copy") is None


def test_values_that_were_learned_otherwise_are_told(say: Any, model: Path, tmp_path: Path) -> None:
    """Only where they are used, and where the run says how they are to be learned."""
    source = responses(tmp_path / "some.jsonl", "5", "6", "7", "8")
    value = ("value=true", "value.head=mean", "value.max_value=null", "value.num_epochs=1")
    say(*annotate(source, tmp_path / "out", "reward=length", f"reference={model}", *value))

    def refusal(algorithm: str, *overrides: str) -> str | None:
        words = train(algorithm, tmp_path / "out", model, "iterations=1", *overrides)[1:]
        run = run_settings(words)
        assert run.data is not None
        return other_values(run.data, needs_of(run.algorithm, run.reward, run.data))

    as_it_was = ("data.value.head=mean", "data.value.max_value=null", "data.value.num_epochs=1")
    assert refusal("a_lol") is None and refusal("a_lol", *as_it_was) is None
    otherwise = (*as_it_was[:2], "data.value.num_epochs=5")
    assert refusal("wbc", *otherwise) is None
    message = refusal("a_lol", *otherwise)
    assert message is not None and "as data.value says: num_epochs=1 instead of 5" in message


def test_evaluations_can_be_counted_by_the_epoch(say: Any, model: Path, tmp_path: Path) -> None:
    source = responses(tmp_path / "some.jsonl", *map(str, range(20)))
    say(*annotate(source, tmp_path / "out", "reward=length"))
    common = ("rollout.prompts_per_iteration=2", "data.num_epochs=3")

    def counted(*overrides: str) -> tuple[int, int]:
        run = with_iterations(run_settings(train("nll", tmp_path / "out", model, *common, *overrides)[1:]))
        return run.iterations, run.evaluate_every

    an_epoch = counted()[0] // 3
    assert counted("evaluate_every=7") == (3 * an_epoch, 7)
    assert counted("evaluate_every=7", "data.evaluations_per_epoch=2") == (3 * an_epoch, an_epoch // 2)
    assert counted("data.evaluations_per_epoch=1000") == (3 * an_epoch, 1)
    code, output = say(*train("nll", tmp_path / "out", model, "data.evaluations_per_epoch=2"))
    assert code == 2 and "got evaluations_per_epoch=2 without num_epochs: expected both" in output
