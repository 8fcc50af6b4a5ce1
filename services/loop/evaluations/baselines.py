"""Baseline players: a random one and an expert play the same held-out prompts once.

The win rates of random play and of expert play put the model's win rate into proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from contracts.rollout import Lease
from services.loop.collecting import Collector, FailureBudget
from services.loop.evaluations.evaluation import evaluate
from services.terminal.readable import number

Player = Literal["random", "expert"]
BASELINE = "baseline"
PLAYERS = get_args(Player)
SUMMED_UP = ("reward/mean", "environment/won/mean")


def played_by(player: Player, leases: Sequence[Lease]) -> list[Lease]:
    """Return copies of the leases, with the same prompts and seeds, that this player plays."""
    return [replace(lease, sampling=replace(lease.sampling, player=player)) for lease in leases]


def baselines(split: str, leases: Sequence[Lease], collect: Collector) -> dict[str, float]:
    """Evaluate each baseline; return its metrics under names such as `baseline/random/reward/mean`.

    Where an expert can't play an episode, `baseline/expert/environment/failed` counts it and the run goes on.
    """
    found: dict[str, float] = {}
    for player in PLAYERS:
        own = replace(collect, failures=FailureBudget(len(leases), len(leases)), on_episodes=None)
        metrics = evaluate(split, played_by(player, leases), own).metrics
        found |= {f"{BASELINE}/{player}/{key}": value for key, value in metrics.items()}
    return found


def of_player(player: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a baseline's metrics from those of an evaluation, without the baseline's prefix.

    >>> of_player("random", {"reward/mean": 1.0, "baseline/random/reward/mean": 0.25})
    {'reward/mean': 0.25}
    """
    prefix = f"{BASELINE}/{player}/"
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def summary(metrics: Mapping[str, float]) -> str:
    """Return the baselines' results in one line.

    >>> summary({"reward/mean": 1.0, "baseline/random/reward/mean": 0.25, "baseline/expert/reward/mean": 3.0})
    'random: reward/mean 0.25; expert: reward/mean 3'
    """
    found = []
    for player in PLAYERS:
        own = of_player(player, metrics)
        shown = [f"{key} {number(own[key])}" for key in SUMMED_UP if key in own]
        found.append(f"{player}: {', '.join(shown) or 'could not play'}")
    return "; ".join(found)
