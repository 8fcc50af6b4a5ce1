"""What the training loop speaks to: Ray actors behind edges, or in a test plain classes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.rollout import Lease, Rollout
from contracts.scores import MetricValue, Sample, Score
from contracts.weights import WeightManifest


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A manifest, and where its arrays are: an object reference, or the arrays themselves."""

    manifest: WeightManifest
    arrays: Any
    mask_arrays: Any = None  # the mask model's, where there is one
    fetch_whole: Callable[[], "PublishedWeights"] | None = None  # where these are changes: all of the arrays

    def for_holder_of(self, push: str | None) -> "PublishedWeights":
        """As whoever loaded that publication last can use them.

        Raises:
            LearnerLost: who has the whole is gone.
        """
        if self.fetch_whole is None or self.manifest.base == push:
            return self
        return self.fetch_whole()


class RolloutClient(Protocol):
    """The workers, seen as one."""

    @property
    def environment_restarts(self) -> int:
        """Environments that died, hung or raised, and were replaced, since the start."""
        ...

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        """Every lease comes back exactly once, as soon as it is finished, whoever dies meanwhile.

        Now and then an empty list is yielded, so that the caller can look up.
        """
        ...

    def score(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Log-probabilities of each text's tokens after the first, by the weights as they are now."""
        ...

    def load_weights(self, weights: PublishedWeights) -> None:
        """Returns when every worker has them and has proved it."""
        ...


class FleetClient(RolloutClient, Protocol):
    """The workers of a training run: they may also work ahead of it."""

    @property
    def idle_s(self) -> float:
        """Seconds that all workers together had nothing to do, since the start."""
        ...

    @property
    def num_workers(self) -> int:
        """That there are to be."""
        ...

    @property
    def num_up(self) -> int:
        """That may be given leases now."""
        ...

    @property
    def num_quarantined(self) -> int:
        """Times, since the start, that one was taken out and its place stayed empty for a while."""
        ...

    def scale(self, num_workers: int) -> None:
        """From now on there are to be so many; nothing that is leased is lost."""
        ...

    def submit(self, leases: Sequence[Lease]) -> None:
        """To be played while the caller does other things; weights may change meanwhile."""
        ...

    def collect(self) -> list[Rollout]:
        """Of what was submitted: what has been finished since the last call. Does not wait for more."""
        ...

    def sleep(self) -> None:
        """Returns when all that have nothing to do have left their GPUs' memory to others.

        They wake by themselves, with whatever they are asked for next.
        """
        ...

    def cancel_all(self) -> None:
        """Give up on everything that is under way."""
        ...


class RewardClient(Protocol):
    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]: ...

    def compute_metrics(self, samples: Sequence[Sample]) -> dict[str, MetricValue]: ...

    def cached(self) -> dict[str, float]:
        """The share of the samples so far that each reward knew already, by label."""
        ...


class LearnerClient(Protocol):
    """Each call raises LearnerLost where its process is gone, until `restart`."""

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        """One iteration; `on_progress(phase, done, total)` is called while it runs."""
        ...

    def restart(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Begin anew, with the weights that the run began with."""
        ...

    def publish(self) -> PublishedWeights: ...

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...

    def export(self, folder: str) -> None: ...
