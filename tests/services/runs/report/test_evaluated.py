"""Evaluations in the report: bands, the user's own measures, labels that differ, a table with errors."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runs.folder import RunFolder
from services.runs.report.curves import Curve, Panel, draw_svg, reward_panel, tick_labels
from services.runs.report.evaluated import (
    Evaluated,
    evaluation_panels,
    evaluation_table,
    measure_panels,
    read_evaluations,
)
from tests.services.runs.report.test_report import CONFIG, page_of


def test_the_reward_has_a_band_of_two_standard_errors() -> None:
    rows = [{"iteration": i, "reward/mean": 0.5, "reward/standard_error": 0.125 * i} for i in (1, 2)]
    evaluations = [{"epoch": 2, "metrics": {"reward/mean": 0.5, "reward/standard_error": 0.0625}}]
    training, validation = reward_panel(rows, evaluations).curves
    assert training.band == ((0.25, 0.75), (0.0, 1.0))
    assert validation.band == ((0.375, 0.625),) and validation.is_sparse
    without = reward_panel([{"iteration": 1, "reward/mean": 0.5}, rows[1]], [])
    assert without.curves[0].band == () and "bands" not in without.note


def band_of(svg: str) -> list[tuple[float, float]]:
    """The corners of the first curve's band, in pixels, y downwards."""
    drawn = r'<path id="\w+" d="([^"]*)"\s*/>\s*</defs>.*?y="(\d+)" style="fill: var\(--c0\)'
    path = re.search(drawn, svg, re.DOTALL)
    assert path is not None
    return [(float(x), float(path[2]) + float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path[1])]


def test_a_band_stays_in_its_box() -> None:
    curve = Curve("x", ((1.0, 0.5), (2.0, 0.5)), band=((-40.0, 90.0), (0.0, 1.0)))
    svg = draw_svg(Panel("x", "", (curve,)), width=340, height=180).svg
    points = band_of(svg)
    assert len(points) >= 4 and all(0 <= x <= 340 and 0 <= y <= 180 for x, y in points)


def test_labels_of_values_far_from_zero_differ() -> None:
    curve = Curve("x", ((1.0, 1000.001), (2.0, 1000.002)))
    svg = draw_svg(Panel("x", "", (curve,)), width=340, height=180).svg
    labels = re.findall(r">([\d.]+k)</text>", svg)
    assert len(labels) >= 3 and len(set(labels)) == len(labels)


def test_a_constant_has_short_labels() -> None:
    curve = Curve("x", ((1.0, 0.01), (2.0, 0.01)))
    svg = draw_svg(Panel("x", "", (curve,)), width=340, height=180).svg
    assert re.findall(r">(0\.\d+)</text>", svg) == ["0.009", "0.0095", "0.01", "0.0105", "0.011"]


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=7, unique=True))
def test_no_two_labels_of_an_axis_are_equal(values: list[float]) -> None:
    assert len(set(tick_labels(values))) == len(values)


def evaluation(epoch: int, **errors: float) -> Evaluated:
    metrics = {"mean@4": 0.4, "pass@1": 0.4, "pass@2": 0.5, "pass@4": 0.6, "maj@4": 0.5}
    metrics |= {"reward/mean": 0.4, "reward/std": 0.1, "response_length/mean": 9.0, "lexical/bleu": 0.2}
    return Evaluated(epoch, {**metrics, "baseline/random/pass@4": 0.1}, errors)


def test_numbers_of_several_texts_share_a_chart_and_other_metrics_have_one_each() -> None:
    panels = evaluation_panels([evaluation(0, **{"pass@4": 0.05}), evaluation(5, **{"pass@4": 0.05})])
    assert [panel.title for panel in panels] == ["Several texts per prompt", "lexical/bleu"]
    assert [curve.label for curve in panels[0].curves] == ["mean@4", "maj@4", "pass@1", "pass@4"]
    assert panels[0].curves[3].band == (pytest.approx((0.5, 0.7)), pytest.approx((0.5, 0.7)))
    assert panels[1].curves[0].points == ((0.0, 0.2), (5.0, 0.2)) and panels[1].curves[0].is_sparse


def test_a_table_of_many_evaluations_shows_the_ends_and_some_between() -> None:
    table = evaluation_table("val", [evaluation(epoch, **{"pass@4": 0.05}) for epoch in range(0, 55, 5)])
    assert table.columns == ("random", *(f"iteration {epoch}" for epoch in (0, 10, 20, 30, 40, 50)))
    assert dict(table.rows)["pass@4"] == ("0.1", *["0.600 ± 0.050"] * 6)
    assert "baseline/random/pass@4" not in dict(table.rows)


def test_errors_that_an_evaluation_lacks_come_of_its_texts(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", CONFIG, resume="auto")
    rows: list[dict[str, Any]] = [
        {"sample_id": name, "prompt_text": name, "lexical/x": value}
        for name, value in (("a", 1.0), ("a", 3.0), ("b", 5.0), ("b", 7.0))
    ]
    folder.append_evaluation(0, "val", {"lexical/x": 4.0, "corpus": 0.3, "n": None, "reward/mean": 0.5})
    folder.write_predictions(0, "val", rows)
    (evaluated,) = read_evaluations(folder, "val")
    assert evaluated.errors == {"lexical/x": 2.0}  # prompts' means 2 and 6: √8 / √2
    assert (evaluated.shown("lexical/x"), evaluated.shown("corpus"), evaluated.shown("n")) == (
        "4.0 ± 2.0",
        "0.3",
        "–",
    )


def test_the_user_s_own_measures_are_drawn(tmp_path: Path) -> None:
    rows = [{"iteration": i, "reward/mean": 0.1, "time/x_s": 1.0, "mine/questions": i / 4} for i in (1, 2)]
    assert [panel.title for panel in measure_panels(rows)] == ["mine/questions"]
    for name, measures in (("with", ["my_module:Questions"]), ("without", [])):
        folder = RunFolder.open(tmp_path, name, {**CONFIG, "measures": measures}, resume="auto")
        for row in rows:
            folder.append_rollout_info(int(row["iteration"]), row)
        assert ("mine/questions" in page_of(folder).text) == (name == "with")
