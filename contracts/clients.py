"""Protocols of the training loop's partners: Ray actors in a run, plain classes in a test."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.rollout import Lease, Rollout
from contracts.scores import MetricValue, Sample, Score
from contracts.weights import WeightGroup, WeightManifest


class Broadcast(Protocol):
    """The learner's side of sending weights through a group; each call raises LearnerLost if it is gone."""

    @property
    def group(self) -> WeightGroup | None:
        """The learner's group; None: open a new one first."""
        ...

    def open(self, num_receivers: int) -> WeightGroup:
        """Make a new group. The learner starts to join it while the receivers get its address."""
        ...

    def has_joined(self) -> str | None:
        """Wait until the learner has joined; return the reason of a failure, or None."""
        ...

    def send(self) -> Mapping[str, Any]:
        """Start to send; return entries for the receivers, beside the manifest."""
        ...

    def has_sent(self) -> str | None:
        """Wait until the learner has sent everything; return the reason of a failure, or None."""
        ...

    def keep(self) -> None:
        """Keep the weights to send, and leave the group: receivers that could not join load arrays."""
        ...

    def release(self) -> None:
        """Free memory that receivers no longer read."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A manifest with its arrays, as an object reference or themselves, or for a broadcast."""

    manifest: WeightManifest
    arrays: Any  # None: a group sends these weights
    mask_arrays: Any = None  # the mask model's arrays, if there is one
    # For changes or a broadcast: fetches whole arrays
    fetch_whole: Callable[[], "PublishedWeights"] | None = None
    broadcast: Broadcast | None = None

    def for_holder_of(self, push: str | None) -> "PublishedWeights":
        """Return the weights that a worker can load if its last load was the publication `push`.

        Raises:
            LearnerLost: the process with the whole arrays is gone.
        """
        if self.fetch_whole is None or (self.broadcast is None and self.manifest.base == push):
            return self
        return self.fetch_whole()


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """Numbers of the first tokens of the policy in one rollout, as an update read them.

    Example: lease 9 with two tokens; a bound on π_old/μ leaves the second out.

        TokenNumbers(9, "", 2, logprobs=[-0.7, -9.0], advantages=[0.5, 0.5], in_loss=[1.0, 0.0])
    """

    lease_id: int
    role: str
    num_tokens: int  # tokens of the whole rollout
    logprobs: Sequence[float]  # log-probabilities by the weights before the update
    advantages: Sequence[float]
    in_loss: Sequence[float]  # 0: the loss leaves it out


class RolloutClient(Protocol):
    """All rollout workers as one object."""

    @property
    def environment_restarts(self) -> int:
        """The number of environments replaced since the start, after they died, hung or raised."""
        ...

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        """Yield the rollouts of every lease exactly once, as soon as they are finished, even if workers die.

        An empty list comes now and then, so that the caller can do other work.
        """
        ...

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of each text's tokens after the first, under the current weights."""
        ...

    def load_weights(self, weights: PublishedWeights) -> None:
        """Load weights; return when every worker has proved that it has them."""
        ...


class FleetClient(RolloutClient, Protocol):
    """The rollout workers of a training run, which may also work ahead of it."""

    @property
    def idle_s(self) -> float:
        """Idle seconds since the start, summed over all workers."""
        ...

    @property
    def num_workers(self) -> int:
        """The number of workers that the fleet should have."""
        ...

    @property
    def num_up(self) -> int:
        """The number of workers that can take leases now."""
        ...

    @property
    def num_quarantined(self) -> int:
        """The number of quarantines since the start: each left a lost worker's place empty for a while."""
        ...

    def scale(self, num_workers: int) -> None:
        """Set the number of workers; no lease is lost."""
        ...

    def submit(self, leases: Sequence[Lease]) -> None:
        """Play leases while the caller does other work; weights may change meanwhile."""
        ...

    def collect(self) -> list[Rollout]:
        """Return the submitted rollouts that were finished since the last call, without waiting."""
        ...

    def sleep(self) -> None:
        """Free the GPU memory of all idle workers; return when it is free.

        A sleeping worker wakes at its next request.
        """
        ...

    def cancel_all(self) -> None:
        """Give up all unfinished leases."""
        ...


@dataclass(frozen=True, slots=True)
class Scoring:
    """The state of scoring: which rewards are slow, and which have lost a process.

    Example: two texts wait for a slow reward, whose processes are all alive.

        Scoring(num_answered=126, at_work={"judge": 2}, lost=())
    """

    num_answered: int = 0  # texts since the start, summed over all rewards
    at_work: Mapping[str, int] = field(default_factory=dict)  # texts that wait for each reward, by label
    lost: tuple[str, ...] = ()  # labels of rewards with a lost replica

    def __str__(self) -> str:
        """Return a message such as `reward judge is alive and has 2 texts left`."""
        dead = [f"reward {label} lost a replica, which is being replaced" for label in self.lost]
        alive = [
            f"reward {label} is alive and has {number} texts left"
            for label, number in self.at_work.items()
            if label not in self.lost
        ]
        return "; ".join(dead + alive) or "the rewards"


class Graders(Protocol):
    """Metrics, and graders that find answers, for an evaluation."""

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        """Compute the metrics of samples, of one part of a mixture or of all."""
        ...

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        """Return the answer in each text, by the first grader that finds answers; None if none does.

        Args:
            part: part of a mixture whose graders find answers.
        """
        ...


class RewardClient(Graders, Protocol):
    """All reward and metric servers as one object."""

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]: ...

    def cached(self) -> dict[str, float]:
        """Return the share of samples so far that each reward answered from its cache, by label."""
        ...

    def take_counts(self) -> dict[str, float]:
        """Return the rewards' counts since the last call: {"reward/judge/tokens": 812.0}."""
        ...

    def scoring(self) -> Scoring:
        """Return the progress of scoring, and which rewards lost a replica or still have work."""
        ...


class LearnerClient(Protocol):
    """The learner. Each call raises LearnerLost if its process is gone, until `restart`."""

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        """Train for one iteration, and call `on_progress(phase, done, total)` meanwhile."""
        ...

    def measure(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        """Return measures of held-out responses: loss, perplexity, accuracy; nothing changes."""
        ...

    def logprobs(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> list[list[float]]:
        """Return the log-probabilities of each rollout's tokens, by the current weights."""
        ...

    def token_numbers(self) -> Sequence[TokenNumbers]:
        """Return numbers of single tokens in the last update, for a few of its rollouts."""
        ...

    def plan(self, iterations: int) -> None:
        """Plan the learning rate's schedule for this number of iterations, not for that of the start."""
        ...

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> bool:
        """Begin to score a part of the next `num_rollouts`; return False while an earlier part is scored."""
        ...

    def restart(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Start a new process with the run's first weights."""
        ...

    def publish(self) -> PublishedWeights: ...

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...

    def export(self, folder: str) -> None: ...
