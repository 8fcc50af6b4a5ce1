"""Reserve places in a Ray cluster: the learner's ranks as one gang, and the workers."""

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contracts.errors import DeadlineExceeded
from learner.distributed.rendezvous import Rendezvous
from services.training.preflight.deployment import Deployment
from services.training.preflight.placement import Placement

NOTE_AFTER_S = 5.0  # seconds of waiting for places until a note

Note = Callable[[str], None]


def gang(
    placed: Placement, patience_s: float, note: Note
) -> Callable[[Rendezvous | None], dict[str, object]]:
    """Reserve the places of all of a learner's ranks at once, on as few nodes as possible.

    Returns: the option of an actor that becomes a rank. A replacement gets the lost rank's place, or Ray's
        new place if the node is lost. A single process needs no group.

    Raises:
        DeadlineExceeded: the cluster did not have room for all ranks in time.
    """
    if placed.num_learners < 2 or not placed.learner.resources:
        return lambda _: {}
    bundles = [placed.learner.resources] * placed.num_learners
    wanted = f"learner.num_processes={placed.num_learners}: as many places of {placed.learner.resources}"
    group = _reserved(bundles, "PACK", wanted, patience_s, "learner.start_timeout_s", note)

    def place_of(rendezvous: Rendezvous | None) -> dict[str, object]:
        rank = -1 if rendezvous is None else rendezvous.rank
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        return {"scheduling_strategy": strategy}

    return place_of


def places_together(deployed: Deployment, note: Note) -> dict[str, object]:
    """Reserve all workers' places at once, as `cluster.strategy` says; return the actors' option.

    A worker takes any free place. A replacement takes the lost worker's place, or a new one from Ray.

    Raises:
        DeadlineExceeded: the cluster did not have room for all workers in time.
    """
    strategy, patience_s = deployed.strategy, deployed.rollout.start_timeout_s
    placed = deployed.placement
    if strategy == "none":
        return {}
    bundles = [placed.worker.resources] * placed.num_workers
    wanted = f"cluster.strategy={strategy}: {placed.num_workers} places of {placed.worker.resources}"
    group = _reserved(bundles, strategy.upper(), wanted, patience_s, "rollout.start_timeout_s", note)
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}


def extra_place(strategy: str) -> dict[str, object]:
    """Return the place of an added worker, outside the first workers' group, which can't grow.

    If the first workers are spread, Ray spreads the new one as well as it can.
    """
    return {"scheduling_strategy": "SPREAD"} if "spread" in strategy else {}


def _reserved(
    bundles: Sequence[dict[str, float]], strategy: str, wanted: str, patience_s: float, key: str, note: Note
) -> Any:
    """Reserve a placement group, and report a long wait."""
    group = placement_group(list(bundles), strategy=strategy)
    if not group.wait(min(NOTE_AFTER_S, patience_s)):
        note(f"waiting for {wanted}; the cluster has {_shown(ray.cluster_resources())}")
        if not group.wait(patience_s):
            raise DeadlineExceeded(
                f"waited {patience_s:g} s ({key}) for {wanted}; the cluster has "
                f"{_shown(ray.cluster_resources())}, of which {_shown(ray.available_resources())} are free"
            )
    return group


def _shown(resources: dict[str, float]) -> str:
    """
    >>> _shown({"CPU": 4.0, "memory": 1e9})
    '4 CPU, 0 GPU'
    """
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
