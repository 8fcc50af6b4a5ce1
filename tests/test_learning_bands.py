"""Every algorithm that has a band learns as well as it did: three more seeds of each, beside its band."""

from collections.abc import Iterator
from statistics import fmean

import pytest

from benchmarks.learning_bands import MEASURES, NEW_SEEDS, banded, bands_of, read_bands, reward_of
from benchmarks.orderings import arms as running
from benchmarks.orderings.registry import Arm, read_registry
from benchmarks.studies import offline


@pytest.fixture(scope="module")
def anew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep no run and no start model of an earlier commit."""
    folder = tmp_path_factory.mktemp("bands")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "ROOT", folder)
        patch.setattr(offline, "OUT", folder)
        yield


def mean_reward(arm: Arm, ordering: str) -> float:
    return fmean(reward_of(arm, seed, MEASURES[ordering]) for seed in NEW_SEEDS)


@pytest.mark.long
@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("ordering", "name"), [(ordering, name) for ordering in MEASURES for name in banded(ordering)]
)
def test_an_algorithm_learns_no_worse(ordering: str, name: str) -> None:
    bands, reward = read_bands()[ordering], mean_reward(banded(ordering)[name], ordering)
    assert reward >= bands["at_least"][name], f"it earned {bands['rewards'][name]}"


@pytest.mark.long
@pytest.mark.usefixtures("anew")
def test_a_tenth_of_the_learning_rate_falls_below_the_band() -> None:
    arm = banded("critic")["ppo"]
    slow = arm.model_copy(update={"train": (*arm.train, "algorithm.learning_rate=1e-4")})
    assert mean_reward(slow, "critic") < read_bands()["critic"]["at_least"]["ppo"]


def test_the_bands_follow_from_eight_seeds_of_each_arm() -> None:
    bands_of_all = read_bands()
    assert set(bands_of_all) == set(MEASURES)
    for ordering, bands in bands_of_all.items():
        assert list(bands["rewards"]) == list(banded(ordering))
        assert {len(rewards) for rewards in bands["rewards"].values()} == {len(read_registry().seeds)}
        assert bands["at_least"] == pytest.approx(bands_of(bands["rewards"]))
    assert not set(NEW_SEEDS) & set(read_registry().seeds)
