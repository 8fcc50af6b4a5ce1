"""Changes between evaluations: paired by prompt where the texts' values make up the metric."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from services.runs.changes import change, change_in, observed
from services.runs.folder import RunFolder
from services.runs.standard_errors import Change

EASE = [0.1, 0.5, 0.9, 0.3]  # of four prompts


def rows_of(rewards: list[float], texts: int = 1) -> list[dict[str, Any]]:
    return [
        {"sample_id": f"p/{place}", "prompt_text": "a", "reward": reward, "bleu": reward, "words": "n/a"}
        for place, reward in enumerate(rewards)
        for _ in range(texts)
    ]


def metrics_of(rewards: list[float], error: float | None = 0.2) -> dict[str, Any]:
    return {"reward/mean": statistics.fmean(rewards), "reward/standard_error": error, "bleu": 0.77}


def a_run(folder: Path, after: list[float], *, with_rows: bool = True) -> RunFolder:
    run = RunFolder.open(folder, "run", {}, resume="auto")
    for epoch, rewards in ((0, EASE), (5, [9.0] * 4), (10, after)):
        run.append_evaluation(epoch, "validation", metrics_of(rewards))
        if with_rows:
            run.write_predictions(epoch, "validation", rows_of(rewards))
    return run


def test_the_first_and_the_last_evaluation_are_compared_prompt_by_prompt(tmp_path: Path) -> None:
    comparison = change_in(a_run(tmp_path, [0.2, 0.58, 1.0, 0.42]), "validation", "reward/mean")
    assert comparison is not None and comparison.difference == pytest.approx(0.1)
    assert comparison.standard_error == pytest.approx(statistics.stdev([0.1, 0.08, 0.1, 0.12]) / 2)
    assert comparison.direction == 1  # and 0.1 would be nothing beside errors of 0.2


def test_a_change_within_its_error_has_no_direction(tmp_path: Path) -> None:
    comparison = change_in(a_run(tmp_path, [0.5, 0.1, 0.3, 0.9014]), "validation", "reward/mean")
    assert comparison is not None and comparison.difference == pytest.approx(0.00035)
    assert comparison.direction == 0


def test_without_predictions_the_errors_of_both_means_are_all_there_is(tmp_path: Path) -> None:
    run = a_run(tmp_path, [0.2, 0.58, 1.0, 0.42], with_rows=False)
    assert change_in(run, "validation", "reward/mean") == Change(
        pytest.approx(0.1), pytest.approx(0.2 * 2**0.5)
    )


def test_a_metric_that_the_texts_do_not_make_up_has_no_error(tmp_path: Path) -> None:
    run = a_run(tmp_path, EASE)
    assert change_in(run, "validation", "bleu") == Change(0.0, None)  # the rows' mean is another number
    assert change_in(run, "validation", "nothing") is None
    assert change_in(run, "test", "reward/mean") is None  # no evaluation at all


def test_several_texts_of_a_prompt_count_as_one_draw() -> None:
    once = [
        observed("reward/mean", metrics_of(rewards), rows_of(rewards))
        for rewards in (EASE, [0.2, 0.58, 1.0, 0.42])
    ]
    four = [
        observed("reward/mean", metrics_of(rewards), rows_of(rewards, 4))
        for rewards in (EASE, [0.2, 0.58, 1.0, 0.42])
    ]
    expected = change(*once).standard_error
    assert change(*four).standard_error == pytest.approx(expected)


def test_a_parts_metric_is_that_of_its_own_rows() -> None:
    rows = [
        {**row, "part": part}
        for part, rewards in (("easy", [0.25, 0.75]), ("hard", [0.0]))
        for row in rows_of(rewards)
    ]
    metrics = {
        "parts/easy/reward/mean": 0.5,
        "parts/easy/reward/standard_error": 0.25,
        "parts/easy/bleu": 0.5,
    }
    assert observed("parts/easy/reward/mean", metrics, rows).standard_error == 0.25
    assert observed("parts/easy/bleu", metrics, rows).texts == (0.25, 0.75)
