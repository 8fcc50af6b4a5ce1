"""Compute how many processors and GPUs each process of a run reserves, without reading a machine."""

import math
from collections import Counter
from dataclasses import dataclass

from contracts.errors import InputError
from learner.settings import LearnerSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings

ROUNDING = 1e-9  # tolerance, so that three thirds make a whole

Graders = tuple[tuple[float, int], ...]  # (GPUs of a replica, number of replicas)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Processors and GPUs that one process reserves.

    Example: a worker with a whole GPU: `Reservation(num_cpus=0.0, num_gpus=1.0)`
    """

    num_cpus: float = 0.0
    num_gpus: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """Return the amounts above 0 under Ray's names, as a bundle of a placement group."""
        both = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {name: amount for name, amount in both.items() if amount}


@dataclass(frozen=True, slots=True)
class Placement:
    """Numbers of a run's learner and worker processes, and their reservations."""

    learner: Reservation  # reservation of each process
    worker: Reservation
    num_workers: int
    num_learners: int = 1
    rewards: Graders = ()

    @property
    def num_gpus(self) -> float:
        return sum(wanted * count for wanted, count in self.gpus)

    @property
    def gpus(self) -> Graders:
        """Return (GPUs of a process, number of such processes) of learner, workers, rewards and metrics."""
        learner, worker = self.learner.num_gpus, self.worker.num_gpus
        return ((learner, self.num_learners), (worker, self.num_workers), *self.rewards)

    @property
    def workers_beside_a_learner(self) -> int:
        """Return how many workers may share the GPU of a learner's process."""
        learner, worker = self.learner.num_gpus, self.worker.num_gpus
        if not (0 < learner < 1 and 0 < worker < 1):
            return 0
        return min(self.num_workers, int((1 - learner + ROUNDING) / worker))

    @property
    def num_cpus(self) -> float:
        return self.num_learners * self.learner.num_cpus + self.num_workers * self.worker.num_cpus


def placement(
    rollout: RolloutSettings,
    cluster: ClusterSettings,
    learners: int,
    num_gpus: float,
    rewards: Graders = (),
) -> Placement:
    """Share `num_gpus` GPUs evenly if the settings leave reservations open.

    Args:
        learners: processes of the learner; 0: only workers.
        rewards: reservations of rewards and metrics; learner and workers share the rest.
    """
    num_gpus, taken = _left_by(rewards, num_gpus)
    workers, size = rollout.num_workers, rollout.tensor_parallel_size
    if size > 1 and cluster.worker_gpus is None:  # whole GPUs, because NCCL allows one process on each
        of_learner, of_worker = (1.0, float(size)) if num_gpus else (0.0, 0.0)
    elif cluster.learner_gpus is None or cluster.worker_gpus is None:
        # A process's share never spans two GPUs, so this many processes share one GPU.
        share = (1.0 - taken) / math.ceil((workers + learners) / num_gpus) if num_gpus else 0.0
        of_learner = of_worker = share
        if learners > 1 and 0 < share < 1:  # NCCL allows one of its processes on each GPU
            of_learner, of_worker = 0.51, 0.48 / math.ceil(workers / num_gpus)
    else:
        of_learner, of_worker = cluster.learner_gpus, cluster.worker_gpus
    of_each = Reservation(cluster.learner_cpus, of_learner), Reservation(cluster.worker_cpus, of_worker)
    return Placement(*of_each, num_workers=workers, num_learners=learners, rewards=rewards)


def _left_by(rewards: Graders, num_gpus: float) -> tuple[float, float]:
    """Return the GPUs that rewards leave to others, and the share of each that is taken.

    Shares of a GPU are packed onto as few GPUs as possible. If they fit on one GPU, others share it.

    >>> _left_by(((1.0, 2), (0.25, 1)), 4.0), _left_by(((0.5, 3),), 4.0)
    ((2.0, 0.25), (2.0, 0.0))
    """
    whole = sum(wanted * count for wanted, count in rewards if wanted >= 1)
    shares = sum(wanted * count for wanted, count in rewards if wanted < 1)
    if shares >= 1:
        whole, shares = whole + math.ceil(shares - ROUNDING), 0.0
    if whole >= num_gpus:  # nothing is left, so check_room rejects the run
        return num_gpus, 0.0
    return num_gpus - whole, shares


def fits(placed: Placement, num_gpus: int, num_cpus: float) -> bool:
    """Tell whether one machine has room. A share lies on one GPU, and whole GPUs are not shared."""
    free = Counter({1.0: num_gpus})  # free share of a GPU: number of these GPUs
    for wanted, count in sorted(placed.gpus, reverse=True):
        if wanted >= 1:
            free[1.0] -= int(wanted) * count
        elif wanted and not _share_out(free, wanted, count):
            return False
        if free[1.0] < 0:
            return False
    return placed.num_cpus <= num_cpus


def _share_out(free: Counter[float], wanted: float, count: int) -> bool:
    """Lay `count` shares onto the fullest GPUs first; return False if there is not enough room."""
    for left in sorted(free):
        per_gpu = int((left + ROUNDING) / wanted)
        filled = min(free[left], count // per_gpu) if per_gpu else 0
        free[left] -= filled
        free[left - per_gpu * wanted] += filled
        count -= filled * per_gpu
        if 0 < count < per_gpu and free[left] > 0:
            free[left] -= 1
            free[left - count * wanted] += 1
            count = 0
    return not count


def check_room(
    rollout: RolloutSettings,
    cluster: ClusterSettings,
    learner: LearnerSettings,
    num_gpus: int,
    num_cpus: float,
    rewards: Graders = (),
) -> None:
    """Reject a run for which this machine has no room, because it would wait forever.

    Raises:
        InputError: no room; the message names the request, the machine's resources, and settings to change.
    """
    placed = placement(rollout, cluster, learner.num_processes, num_gpus, rewards)
    if learner.device == "cuda" and not num_gpus:
        raise InputError(
            "learner.device=cuda: this machine has no GPU that torch can use; expected learner.device=auto"
        )
    if learner.device == "cuda" and cluster.learner_gpus == 0:
        raise InputError(
            "learner.device=cuda with cluster.learner_gpus=0: a process sees only GPUs that it reserves; "
            "expected more of cluster.learner_gpus, or learner.device=auto"
        )
    if cluster.strategy == "strict_spread" and placed.num_workers > 1:
        raise InputError(
            f"cluster.strategy=strict_spread puts {placed.num_workers} workers on as many nodes, but this is "
            "one machine; expected cluster.strategy=spread, or RAY_ADDRESS of a cluster"
        )
    if fits(placed, num_gpus, num_cpus):
        return
    workers = f"rollout.num_workers={placed.num_workers}"
    graders = sum(wanted * count for wanted, count in rewards)
    also = f", and rewards and metrics {_said(Reservation(0, graders))} (reward_servers)" if graders else ""
    raise InputError(
        f"cluster: {_learners(placed)} {_said(placed.learner)}, and each worker of {workers} "
        f"{_said(placed.worker)}{also}; this machine has {_said(Reservation(num_cpus, num_gpus))}. Expected "
        "less of cluster.learner_gpus, worker_gpus, learner_cpus or worker_cpus, such as cluster=laptop; "
        "or RAY_ADDRESS of a cluster that has them"
    )


def _learners(placed: Placement) -> str:
    if placed.num_learners == 1:
        return "the learner reserves"
    return f"each process of learner.num_processes={placed.num_learners} reserves"


def _said(reserved: Reservation) -> str:
    """
    >>> _said(Reservation(2.0, 0.5))
    '0.5 GPUs and 2 CPUs'
    """
    gpus = f"{reserved.num_gpus:g} GPU{'s' * (reserved.num_gpus != 1)}"
    return f"{gpus} and {reserved.num_cpus:g} CPU{'s' * (reserved.num_cpus != 1)}"
