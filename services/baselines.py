"""Who else plays: the same held-out prompts, taken once at random and once by an expert.

A win rate says little without the rate of one who takes any valid action, and of one who knows the way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from contracts.rollout import Lease
from services.collecting import Collector, FailureBudget
from services.evaluation import evaluate
from services.readable import number

Player = Literal["random", "expert"]
BASELINE = "baseline"
PLAYERS = get_args(Player)
SUMMED_UP = ("reward/mean", "environment/won/mean")


def played_by(player: Player, leases: Sequence[Lease]) -> list[Lease]:
    """The same leases, prompts and seeds, with somebody else than the model in the environment."""
    return [replace(lease, sampling=replace(lease.sampling, player=player)) for lease in leases]


def baselines(split: str, leases: Sequence[Lease], collect: Collector) -> dict[str, float]:
    """What an evaluation of each baseline measures, under names such as `baseline/random/reward/mean`.

    One that can't be played, for want of an expert say, is counted in `baseline/expert/environment/failed`
    and costs a run nothing.
    """
    found: dict[str, float] = {}
    for player in PLAYERS:
        own = replace(collect, failures=FailureBudget(len(leases), len(leases)))
        metrics = evaluate(split, played_by(player, leases), own).metrics
        found |= {f"{BASELINE}/{player}/{key}": value for key, value in metrics.items()}
    return found


def of_player(player: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """A baseline's own metrics among those of an evaluation, under the names that the model's have.

    >>> of_player("random", {"reward/mean": 1.0, "baseline/random/reward/mean": 0.25})
    {'reward/mean': 0.25}
    """
    prefix = f"{BASELINE}/{player}/"
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def summary(metrics: Mapping[str, float]) -> str:
    """The baselines in one line.

    >>> summary({"reward/mean": 1.0, "baseline/random/reward/mean": 0.25, "baseline/expert/reward/mean": 3.0})
    'random: reward/mean 0.25; expert: reward/mean 3'
    """
    found = []
    for player in PLAYERS:
        own = of_player(player, metrics)
        shown = [f"{key} {number(own[key])}" for key in SUMMED_UP if key in own]
        found.append(f"{player}: {', '.join(shown) or 'could not play'}")
    return "; ".join(found)
