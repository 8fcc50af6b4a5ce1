"""Stop rules in the loop: the last iteration, its evaluations, its checkpoint, and how the run goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.runs.report.run_page import gather
from services.runs.stopping.stopping import StoppedBy
from tests.services.training.loop.test_controller import Loop, epochs, rows


class Falling(Loop):
    """A loop whose loss is 0.4, 0.3, 0.2, … after iterations 1, 2, 3, …"""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"iterations": 6, "save_every": 0} | options)
        update = self.learner.update
        self.learner.update = lambda *arguments: {  # type: ignore[method-assign]
            **update(*arguments),
            "loss/policy": 0.5 - 0.1 * self.learner.version,
        }


def test_a_rule_ends_the_run_with_evaluations_a_checkpoint_and_a_model(tmp_path: Path) -> None:
    loop = Falling(tmp_path, stop_when=["loss/policy<0.25"]).run()

    assert rows(loop) == [1, 2, 3]
    assert list(loop.folder.checkpoints()) == [3] and (loop.folder.model / "config.json").exists()
    assert epochs(loop, "validation") == [0, 2, 3] and epochs(loop, "test") == [0, 3]
    words = "loss/policy is 0.2 after iteration 3"
    assert json.loads(loop.folder.stopped.read_text()) == {
        "rule": "loss/policy<0.25",
        "iteration": 3,
        "words": words,
    }
    message = f"iteration 3 is the last: loss/policy<0.25 ({words})"
    assert message in " ".join(loop.screen.getvalue().split())
    assert gather(loop.folder)[0].stopped_by == f"loss/policy<0.25 ({words})"


def test_without_the_rule_the_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = Falling(tmp_path / "whole").run()
    stopped = Falling(tmp_path / "run", stop_when=["loss/policy<0.25"]).run()
    resumed = Falling(tmp_path / "run").run()

    assert ("load", 3) in resumed.calls and not resumed.folder.stopped.exists()
    assert stopped.learner.trained + resumed.learner.trained == whole.learner.trained
    assert rows(resumed) == rows(whole)


def test_the_same_rule_stops_the_resumed_run_at_once(tmp_path: Path) -> None:
    stopped = Falling(tmp_path, stop_when=["loss/policy<0.25"]).run()
    again = Falling(tmp_path, stop_when=["loss/policy<0.25"]).run()

    assert again.learner.trained == []
    assert StoppedBy.read(again.folder) == StoppedBy.read(stopped.folder)


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_a_rule_counts_over_a_stop_in_the_middle(tmp_path: Path, cut: int) -> None:
    """The fake rewards are constant: the first evaluation, after iteration 1, stays the best."""
    rules = ["val/reward/mean no better for 3", "loss/policy<0.01"]
    whole = Falling(tmp_path / "whole", stop_when=rules, evaluate_every=1).run()
    Falling(tmp_path / "run", stop_when=rules, evaluate_every=1, iterations=cut).run()
    resumed = Falling(tmp_path / "run", stop_when=rules, evaluate_every=1).run()

    by = StoppedBy.read(whole.folder)
    assert by is not None and by.iteration == 4 and by.rule == rules[0]
    assert StoppedBy.read(resumed.folder) == by
    assert rows(resumed) == [1, 2, 3, 4]


def test_a_metric_that_evaluations_lack_ends_the_run_before_it_trains(tmp_path: Path) -> None:
    loop = Falling(tmp_path, stop_when=["val/reward/men<0"])
    with pytest.raises(InputError, match="no metric 'reward/men' in evaluations; did you mean 'reward/mean'"):
        loop.run()
    assert loop.learner.trained == []
