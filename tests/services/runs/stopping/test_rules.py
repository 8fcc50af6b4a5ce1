"""Stop rules: their grammar, when they fire, and their recovery from files alone."""

import json
from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.runs.diagnosis.history import History
from services.runs.folder import RunFolder
from services.runs.stopping.rules import Comparison, Diagnosed, Plateau, parse
from services.runs.stopping.stopping import StoppedBy, Stopping

NONE = lambda name: None  # noqa: E731


def fires(rule: str, numbers: list[float | None], key: str = "x") -> int | None:
    """Return the iteration after which a rule over `x` stops a run with these numbers."""
    stopping = Stopping([rule])
    for at, number in enumerate(numbers, 1):
        stopping.evaluation(at, {key: number}) if "val/" in rule else stopping.iteration(at, {key: number})
        if by := stopping.stopped_by(NONE):
            return by.iteration if "val/" not in rule else at
    return None


@pytest.mark.parametrize(
    ("rule", "numbers", "at"),
    [
        ("x<0.5", [0.6, 0.5, 0.4], 3),
        ("x <= 0.5", [0.6, 0.5, 0.4], 2),
        ("x>1e-1", [0.1, 0.2], 2),
        ("x>=-1", [-2, -1], 2),
        ("x<0.5 for 3", [0.4, 0.4, 0.6, 0.4, 0.4, 0.4], 6),
        ("x<0.5 for 2", [0.4, None, 0.4, 0.4], 4),  # NaN and infinity, as files keep them, end the row
        ("x<0.5 for 2", [0.4, float("nan"), 0.4, 0.4], 4),
        ("x no better for 2", [1, 2, 1, 2], 4),  # an equal number is no better
        ("x no better for 2", [1, 2, 1, 3, 2], None),
        ("x no better for 2", [3, None, None], 3),
        ("x no better for 2", [None, None], 2),
        ("min:x no better for 2", [3, 2, 1, 2, 2], 5),
        ("loss no better for 1", [], None),
        ("val/x no better for 2", [5, 4, 5], 3),
        ("val/x>4", [3, 5], 2),
    ],
)
def test_a_rule_fires_after_this_iteration(rule: str, numbers: list[float | None], at: int | None) -> None:
    assert fires(rule, numbers) == at


def test_a_loss_is_better_when_it_is_less() -> None:
    assert fires("val/loss no better for 1", [3, 2, 1], "loss") is None
    assert fires("max:val/loss no better for 1", [3, 2, 1], "loss") == 2


def test_what_a_rule_means() -> None:
    assert parse("val/reward/mean  no better for 10") == Plateau(
        "val/reward/mean no better for 10", "val/reward/mean", "max", 10
    )
    assert parse("entropy<0.05") == Comparison("entropy<0.05", "entropy", "<", 0.05, 1)
    assert parse("mine/two words > 3 for 2") == Comparison(
        "mine/two words > 3 for 2", "mine/two words", ">", 3.0, 2
    )
    assert parse("diagnosis:held_out_falls") == Diagnosed("diagnosis:held_out_falls", "held_out_falls")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("entropy", "expected 'METRIC<NUMBER'"),
        ("entropy=3", "expected 'METRIC<NUMBER'"),
        ("entropy<low", "'low' is not a finite number"),
        ("entropy<nan", "'nan' is not a finite number"),
        ("entropy<1 for 0", "N of 1 or more"),
        ("entropy<1 for ever", "expected 'METRIC<NUMBER'"),
        ("val/ no better for 2", "expected 'METRIC<NUMBER'"),
        ("min:entropy<3", "expected 'METRIC<NUMBER'"),
        ("test/reward/mean>1", "expected val/ instead of test/"),
        ("diagnosis:held_out_fals", "no such diagnosis; did you mean 'held_out_falls'"),
    ],
)
def test_a_wrong_rule_is_refused_before_anything_starts(rule: str, message: str) -> None:
    with pytest.raises(InputError, match="stop_when") as refused:
        build(
            RunSettings,
            {
                "algorithm": "ppo",
                "task": "increasing_numbers",
                "model": {"path": "none"},
                "stop_when": [rule],
            },
            where="",
        )
    assert message in str(refused.value)


def test_the_command_line_takes_rules_with_and_without_quotes() -> None:
    typed = ["model.path=none", "task=increasing_numbers", "algorithm=ppo"]
    rules = 'stop_when=["entropy<=0.05", val/reward/mean no better for 10, diagnosis:held_out_falls]'
    assert run_settings([*typed, rules]).stop_when == (
        "entropy<=0.05",
        "val/reward/mean no better for 10",
        "diagnosis:held_out_falls",
    )
    one = run_settings([*typed, "stop_when=entropy<0.05 for 3"])
    assert one.stop_when == ("entropy<0.05 for 3",)
    assert one.resolved()["stop_when"] == ["entropy<0.05 for 3"]
    with pytest.raises(InputError, match="got evaluate_every=0, expected a number of iterations"):
        run_settings([*typed, rules, "evaluate_every=0"])


def test_an_unknown_metric_is_named_with_a_near_one() -> None:
    stopping = Stopping(["entropi<0.05", "val/reward/men no better for 2"])
    with pytest.raises(InputError, match="no metric 'reward/men' in evaluations; did you mean 'reward/mean'"):
        stopping.evaluation(0, {"reward/mean": 0.5})
    assert stopping.iteration(1, {"entropy": 0.5}) == [
        "stop_when='entropi<0.05' waits for 'entropi', which iteration 1 does not have; did you mean "
        "'entropy'? (there are: entropy)"
    ]
    assert stopping.iteration(2, {"entropy": 0.5}) == []


def test_the_untrained_model_does_not_count() -> None:
    stopping = Stopping(["val/reward/mean no better for 1"])
    stopping.evaluation(0, {"reward/mean": 9.0})
    stopping.evaluation(1, {"reward/mean": 0.1})
    assert stopping.stopped_by(NONE) is None


def test_files_bring_the_memory_back_to_the_bit(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", {}, "auto")
    rules = ["a<0.3 for 9", "min:a no better for 9", "val/b no better for 9", "val/b>2 for 9"]
    lasting = Stopping(rules)
    for at in range(1, 8):
        metrics = {"a": [0.1 + 0.2, 1 / 3, float("nan"), 1e-17, float("inf"), 0.2, 0.1][at - 1]}
        folder.append_rollout_info(at, metrics)
        lasting.iteration(at, metrics)
        if at % 2:
            folder.append_evaluation(at, "validation", {"b": at / 7})
            lasting.evaluation(at, {"b": at / 7})
    resumed = Stopping(rules)
    for _ in range(2):  # a learner that is lost reads them again
        assert resumed.resume(History(folder.rollout_info(), folder.evaluations("val"))) == []
    assert resumed._progress == lasting._progress
    assert resumed._progress["a<0.3 for 9"].count == 2


def test_what_stopped_a_run_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", {}, "auto")
    assert StoppedBy.read(folder) is None
    by = StoppedBy("x<1", 3, "x is 0.5 after iteration 3")
    by.write(folder)
    assert StoppedBy.read(folder) == by
    folder.stopped.write_text(json.dumps(["x"]))
    assert StoppedBy.read(folder) is None
