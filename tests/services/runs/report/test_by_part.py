"""Curves of a mixture's parts, in the report and in a comparison."""

from services.runs.report.by_part import part_panels
from services.runs.report.curves import Curve
from services.runs.report.evaluated import Evaluated, evaluation_panels
from services.studies.comparison.curves import Compared, validation_panels
from services.studies.comparison.groups import Group

ROWS = [
    {
        "iteration": number,
        "reward/mean": 0.5,
        "parts/easy/reward/mean": 0.25 * number,
        "parts/hard/reward/mean": 0.125,
        "parts/easy/prompts": 6.0,
        "parts/easy/curriculum/pass_rate": 0.5,
    }
    for number in (1, 2)
]
EVALUATED = Evaluated(
    3,
    {
        "reward/mean": 0.5,
        "parts/easy/reward/mean": 0.75,
        "parts/hard/reward/mean": 0.25,
        "parts/easy/reward/std": 0.1,
        "parts/easy/lexical/exact_match": 0.125,
    },
    {"parts/easy/reward/mean": 0.0625},
)


def test_a_number_has_one_chart_with_a_curve_for_each_part() -> None:
    reward, rate = part_panels(ROWS)
    assert reward.curves == (
        Curve("easy", ((1.0, 0.25), (2.0, 0.5))),
        Curve("hard", ((1.0, 0.125), (2.0, 0.125))),
    )
    assert (rate.title, [curve.label for curve in rate.curves]) == (
        "Pass rate of the prompts by part",
        ["easy"],
    )
    assert part_panels([{"iteration": 1, "reward/mean": 0.5}]) == []


def test_evaluations_show_the_reward_and_the_metrics_of_each_part() -> None:
    panels = {panel.title: panel for panel in evaluation_panels([EVALUATED])}
    assert list(panels) == ["Reward by part", "lexical/exact_match by part"]
    easy, hard = panels["Reward by part"].curves
    assert (easy.points, easy.band) == (((3.0, 0.75),), ((0.625, 0.875),))  # ± 2 standard errors
    assert (hard.points, hard.is_sparse) == (((3.0, 0.25),), True)


def test_a_comparison_has_a_chart_for_each_part() -> None:
    compared = [Compared(Group("a", ()), ((EVALUATED,),)), Compared(Group("b", ()), ((EVALUATED,),))]
    titles = [panel.title for panel in validation_panels(compared)]
    assert titles[:3] == ["Reward", "parts/easy/reward/mean", "parts/hard/reward/mean"]
