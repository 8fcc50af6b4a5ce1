"""Curves over seeds: means and ranges by hand."""

import pytest

from services.runs.report.curves import Panel, draw_svg
from services.studies.comparison.curves import over_seeds
from tests.services.runs.report.test_evaluated import band_of
from tests.services.runs.report.test_report import line_of


def rows(values: list[float | None], **more: float) -> list[dict[str, float | None]]:
    return [{"iteration": i, "r": value, **more} for i, value in enumerate(values, 1)]


def test_a_group_is_drawn_as_its_mean_with_the_range_of_its_seeds() -> None:
    curve = over_seeds("ppo", "r", [rows([0.0, 1.0, 2.0]), rows([1.0, 3.0, 2.0]), rows([2.0, 2.0, 5.0])])
    assert curve.points == ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0))
    assert curve.band == ((0.0, 2.0), (1.0, 3.0), (2.0, 5.0))


def test_only_iterations_that_all_seeds_have_are_drawn() -> None:
    curve = over_seeds("ppo", "r", [rows([0.0, None, 2.0, 4.0]), rows([1.0, 3.0, 4.0])])
    assert curve.points == ((1.0, 0.5), (3.0, 3.0))


def test_one_run_has_the_band_of_its_errors() -> None:
    curve = over_seeds("ppo", "r", [rows([0.5, 0.75], **{"r/standard_error": 0.125})])
    assert curve.band == ((0.25, 0.75), (0.5, 1.0))  # ± 2 standard errors
    assert over_seeds("ppo", "r", [rows([0.5, 0.75])]).band == ()


def test_a_group_without_the_number_leaves_the_others_their_colours() -> None:
    empty, drawn = over_seeds("a", "nothing", [rows([1.0])]), over_seeds("b", "r", [rows([0.0, 1.0])])
    svg = draw_svg(Panel("r", "", (empty, drawn)), width=340, height=180).svg
    assert "var(--c1)" in svg and "var(--c0)" not in svg


def test_a_band_is_a_closed_path_around_its_curve() -> None:
    curve = over_seeds("ppo", "r", [rows([0.0, 0.5]), rows([0.5, 1.0])])
    svg = draw_svg(Panel("r", "", (curve,)), width=340, height=180).svg
    (left, start), (right, end) = line_of(svg)
    height = 2 * (start - end)  # of 1; the line goes from 0.25 to 0.75
    bottom = start + height / 4
    drawn = {(round(x), round((bottom - y) / height, 2)) for x, y in band_of(svg)}
    corners = {(left, 0.0), (left, 0.5), (right, 0.5), (right, 1.0)}
    assert drawn == {(round(x), value) for x, value in corners}


@pytest.mark.parametrize("count", [500, 2400])
def test_a_long_band_is_thinned_with_its_curve(count: int) -> None:
    curve = over_seeds("ppo", "r", [rows([float(i) for i in range(count)]), rows([0.0] * count)])
    assert len(curve.band) == len(curve.points) <= 240
    assert all(low <= y <= high for (_, y), (low, high) in zip(curve.points, curve.band, strict=True))
