"""Weighted sums: refusals, and the effects of the parts' shapes."""

from typing import Any, ClassVar

import pytest

from contracts.components import find
from contracts.errors import InputError
from contracts.scores import Sample, Score
from contracts.settings import Settings, build
from reward_servers.combine import weighted_sum
from reward_servers.graders import REWARDS
from reward_servers.local import LocalRewardClient
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, parts

WORDS = {"weight", "standardize", "clip", "threshold"}
GRADERS = "tests.reward_servers.graders"


class Thresholded:
    """A user's reward with an option that the sum has as well."""

    needs_meta: ClassVar[str] = "label"

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold

    def score(self, samples: list[Sample]) -> list[float]:
        return [self.threshold for _ in samples]


def test_a_shaped_sum_by_hand() -> None:
    reward = parts(
        [
            {"name": "length", "weight": 0.5, "standardize": {"mean": 3, "std": 2.0}, "clip": [None, 1.0]},
            {"name": "length", "label": "short", "weight": -2.0, "threshold": 4.0},
            {"name": "dates", "clip": [0.25, 1]},
        ]
    )
    scores = LocalRewardClient(reward).submit([Sample("a b c d e f"), Sample("a 2024-01-31")]).result()
    # 6 words: (6 - 3) / 2 = 1.5, clipped 1, · 0.5; 6 >= 4: 1 · -2; no date: 0, clipped 0.25
    # 2 words: (2 - 3) / 2 = -0.5, · 0.5; 2 < 4: 0; a date: 1
    assert scores == [
        Score(total=0.5 - 2.0 + 0.25, parts={"length": 6.0, "short": 6.0, "dates": 0.0}),
        Score(total=-0.25 + 0.0 + 1.0, parts={"length": 2.0, "short": 2.0, "dates": 1.0}),
    ]


def test_a_sum_that_is_no_number_is_a_failure_that_shows_its_parts() -> None:
    (score,) = weighted_sum([Part(name="length", weight=1e300)], [[(1e300, None)]])
    assert score.total is None
    assert score.error == "the weighted sum is inf, no finite number: length 1e+300 · 1e+300"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"clip": [1, 0]}, r"clip=\[1, 0\]: expected the lower bound first"),
        ({"clip": [0]}, "reward.clip"),
        ({"clip": [0, 1], "threshold": 2.0}, r"threshold=2 lies outside of clip=\[0.0, 1.0\]"),
        ({"clip": [0, 1], "threshold": 0.0}, "every value is on one side"),
        ({"standardize": True}, r"got True; expected \{mean: …, std: …\}; `whetstone score NAME --reward"),
        ({"standardize": {"mean": 1.0, "std": 0.0}}, "reward.standardize.std: got 0.0"),
        ({"standardize": {"mean": 1.0}}, "reward.standardize.std: is required"),
        ({"threshold": float("nan")}, "finite"),
        ({"clip": [float("nan"), 1]}, "finite"),
        ({"options": {"clip": 3}}, "options: clip is an option of the weighted sum"),
    ],
)
def test_wrong_shapes_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parts({"name": "length", **entry})


def test_a_component_has_no_option_by_the_name_of_a_word_of_the_sum() -> None:
    for name in REWARDS:
        reward = find("reward", name, REWARDS)
        if issubclass(reward, Settings):
            assert not WORDS & reward.model_fields.keys(), name


def test_a_users_option_that_the_sum_would_take_is_refused() -> None:
    check_parts("reward", parts(f"{__name__}:Thresholded"))
    with pytest.raises(
        InputError, match="threshold is an option of the weighted sum, and hides the option of Th"
    ):
        check_parts("reward", parts({"name": f"{__name__}:Thresholded", "threshold": 0.7}))


@pytest.mark.parametrize("word", [{"weight": 0.5}, {"clip": [0, 1]}, {"threshold": 0.5}])
def test_metrics_are_not_shaped(word: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"metrics=length: {next(iter(word))} is for rewards"):
        check_parts("metric", parts({"name": "length", **word}, "metrics"))


def test_a_shaped_part_survives_being_written_down() -> None:
    (part,) = parts(
        {
            "name": "length",
            "target": 3,
            "clip": [0, None],
            "standardize": {"mean": 1, "std": 2},
            "threshold": 0.5,
        }
    )
    flat = {**part.model_dump(exclude={"options"}), **part.options}
    assert flat["clip"] == [0, None]  # a list, as YAML has it
    assert build(Part, flat, "reward") == part
    assert part.shaping == ("standardize", "clip", "threshold")
    assert Part(name="length").shaping == ()
