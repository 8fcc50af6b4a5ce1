"""Work out how many processors and GPUs each process of a run reserves, without asking a machine."""

import math
from collections import Counter
from dataclasses import dataclass

from contracts.errors import InputError
from learner.settings import LearnerSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings

ROUNDING = 1e-9  # three thirds are a whole

Graders = tuple[tuple[float, int], ...]  # (GPUs of a replica, number of replicas)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Processors and GPUs that one process reserves.

    Example: a worker that has a GPU to itself: `Reservation(num_cpus=0.0, num_gpus=1.0)`
    """

    num_cpus: float = 0.0
    num_gpus: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """Return the amounts above 0 by Ray's names: a bundle of a placement group."""
        both = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {name: amount for name, amount in both.items() if amount}


@dataclass(frozen=True, slots=True)
class Placement:
    """Numbers of a run's learner and worker processes, and what each reserves."""

    learner: Reservation  # each of its processes
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
    asked: ClusterSettings,
    learners: int,
    num_gpus: float,
    rewards: Graders = (),
) -> Placement:
    """Share out `num_gpus` GPUs evenly where the settings leave reservations open.

    Args:
        learners: processes of the learner; 0: workers alone.
        rewards: what rewards and metrics reserve; learner and workers share the rest.
    """
    num_gpus, taken = _left_by(rewards, num_gpus)
    workers, size = rollout.num_workers, rollout.tensor_parallel_size
    if size > 1 and asked.worker_gpus is None:  # whole GPUs: NCCL lets no two processes meet on one
        of_learner, of_worker = (1.0, float(size)) if num_gpus else (0.0, 0.0)
    elif asked.learner_gpus is None or asked.worker_gpus is None:
        # A process's share never spans two GPUs, so this many processes meet on one.
        share = (1.0 - taken) / math.ceil((workers + learners) / num_gpus) if num_gpus else 0.0
        of_learner = of_worker = share
        if learners > 1 and 0 < share < 1:  # NCCL lets no two of its processes meet on one GPU
            of_learner, of_worker = 0.51, 0.48 / math.ceil(workers / num_gpus)
    else:
        of_learner, of_worker = asked.learner_gpus, asked.worker_gpus
    of_each = Reservation(asked.learner_cpus, of_learner), Reservation(asked.worker_cpus, of_worker)
    return Placement(*of_each, num_workers=workers, num_learners=learners, rewards=rewards)


def _left_by(rewards: Graders, num_gpus: float) -> tuple[float, float]:
    """Return the GPUs that rewards leave to others, and the share that is taken of each of these.

    Shares of a GPU are together on as few GPUs as possible. What fits on one GPU shares it with others.

    >>> _left_by(((1.0, 2), (0.25, 1)), 4.0), _left_by(((0.5, 3),), 4.0)
    ((2.0, 0.25), (2.0, 0.0))
    """
    whole = sum(wanted * count for wanted, count in rewards if wanted >= 1)
    shares = sum(wanted * count for wanted, count in rewards if wanted < 1)
    if shares >= 1:
        whole, shares = whole + math.ceil(shares - ROUNDING), 0.0
    if whole >= num_gpus:  # nothing is left: what follows has no room, and is refused
        return num_gpus, 0.0
    return num_gpus - whole, shares


def fits(placed: Placement, num_gpus: int, num_cpus: float) -> bool:
    """Tell whether one machine has room: a share lies on one GPU; whole GPUs are not shared."""
    free = Counter({1.0: num_gpus})  # share that is left of a GPU: number of such GPUs
    for wanted, count in sorted(placed.gpus, reverse=True):
        if wanted >= 1:
            free[1.0] -= int(wanted) * count
        elif wanted and not _share_out(free, wanted, count):
            return False
        if free[1.0] < 0:
            return False
    return placed.num_cpus <= num_cpus


def _share_out(free: Counter[float], wanted: float, count: int) -> bool:
    """Lay `count` shares onto the GPUs with the least left first; False: there is not enough."""
    for left in sorted(free):
        each = int((left + ROUNDING) / wanted)
        filled = min(free[left], count // each) if each else 0
        free[left] -= filled
        free[left - each * wanted] += filled
        count -= filled * each
        if 0 < count < each and free[left] > 0:
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
    """Refuse what this one machine has no room for: the run would wait for it for ever.

    Raises:
        InputError: what is asked for, what there is, and what to set.
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
            f"cluster.strategy=strict_spread puts {placed.num_workers} workers on as many nodes, and this is "
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
