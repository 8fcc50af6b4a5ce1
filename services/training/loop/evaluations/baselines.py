"""Baseline players: a random player and an expert play the same held-out prompts once.

Their win rates show how good the model's win rate is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.rollout import Lease
from services.runs.player_metrics import BASELINE, PLAYERS, Player, of_player
from services.terminal.readable import number
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.evaluations.evaluation import evaluate

SUMMED_UP = ("reward/mean", "environment/won/mean")


def played_by(player: Player, leases: Sequence[Lease]) -> list[Lease]:
    """Return copies of the leases, with the same prompts and seeds, that this player plays."""
    return [replace(lease, sampling=replace(lease.sampling, player=player)) for lease in leases]


def baselines(split: str, leases: Sequence[Lease], collect: Collector) -> dict[str, float]:
    """Evaluate each baseline; return its metrics under names such as `baseline/random/reward/mean`.

    `baseline/expert/environment/failed` counts episodes that an expert can't play. They don't stop the run.
    """
    by_player: dict[str, float] = {}
    for player in PLAYERS:
        forgiving = replace(collect, failures=FailureBudget(len(leases), len(leases)), on_episodes=None)
        metrics = evaluate(split, played_by(player, leases), forgiving).metrics
        by_player |= {f"{BASELINE}/{player}/{key}": value for key, value in metrics.items()}
    return by_player


def summary(metrics: Mapping[str, float]) -> str:
    """Return the baselines' results in one line.

    >>> summary({"reward/mean": 1.0, "baseline/random/reward/mean": 0.25, "baseline/expert/reward/mean": 3.0})
    'random: reward/mean 0.25; expert: reward/mean 3'
    """
    players = []
    for player in PLAYERS:
        results = of_player(player, metrics)
        shown = [f"{key} {number(results[key])}" for key in SUMMED_UP if key in results]
        players.append(f"{player}: {', '.join(shown) or 'could not play'}")
    return "; ".join(players)
