"""Measure how much training on the groups that finish first prefers short texts.

leased      0  1  2  3  4  5         groups 1, 2, 4 and 5 are trained on, 0 and 3 are being written
trained on     ■  ■     ■  ■         later 0 is trained on; then groups 0, 1 and 2 are done

The learner trains on every group in the end, so the order only moves long texts to later updates. The
ratio compares all trained texts with the texts of the first leases, of which none is missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.rollout import Rollout


@dataclass(slots=True)
class Lengths:
    """Number of texts, and the sum of their lengths in tokens."""

    tokens: int = 0
    texts: int = 0

    def add(self, other: "Lengths") -> None:
        self.tokens += other.tokens
        self.texts += other.texts

    @property
    def mean(self) -> float:
        return self.tokens / self.texts

    @classmethod
    def of(cls, rollouts: Iterable[Rollout]) -> "Lengths":
        counts = [rollout.num_generated for rollout in rollouts]
        return cls(sum(counts), len(counts))


@dataclass(slots=True)
class LengthBias:
    """Statistics of the lengths of trained groups, in the order of leases.

    >>> bias = LengthBias()
    >>> bias.done_with({1: Lengths(4, 2), 2: Lengths(4, 2)}, waiting=[0])
    >>> bias.metrics()["order/overtaken_share"]
    0.0
    >>> bias.done_with({0: Lengths(40, 2)}, waiting=[])
    >>> bias.metrics() == {
    ...     "order/overtaken_share": 1.0,
    ...     "order/overtaken_length": 20.0,
    ...     "order/length_ratio": 1.0,
    ... }
    True
    """

    trained: Lengths = field(default_factory=Lengths)  # all finished groups
    leased: Lengths = field(default_factory=Lengths)  # groups before the oldest in flight
    beyond: dict[int, Lengths] = field(default_factory=dict)  # finished groups after the oldest in flight
    newest: int = -1  # last leased group that is finished
    _batch: tuple[Lengths, Lengths] = field(default_factory=lambda: (Lengths(), Lengths()))
    _share: float = 0.0

    def done_with(self, groups: Mapping[int, Lengths], waiting: Sequence[int]) -> None:
        """Record the groups of a batch, and the numbers of the groups in flight."""
        overtaken, others = Lengths(), Lengths()
        num_overtaken = 0
        for number, lengths in groups.items():
            is_overtaken = number < self.newest
            num_overtaken += is_overtaken
            (overtaken if is_overtaken else others).add(lengths)
            self.trained.add(lengths)
            self.beyond[number] = lengths
        self._batch, self._share = (overtaken, others), num_overtaken / max(1, len(groups))
        self.newest = max((self.newest, *groups))
        oldest = min(waiting, default=self.newest + 1)
        for number in [past for past in self.beyond if past < oldest]:
            self.leased.add(self.beyond.pop(number))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last batch, and the ratio since the run's start."""
        overtaken, others = self._batch
        metrics = {"order/overtaken_share": self._share}
        metrics |= {"order/overtaken_length": overtaken.mean} if overtaken.texts else {}
        metrics |= {"order/other_length": others.mean} if others.texts else {}
        if self.leased.tokens and self.trained.texts:
            metrics["order/length_ratio"] = self.trained.mean / self.leased.mean
        return metrics

    def state(self) -> dict[str, Any]:
        return {
            "newest": self.newest,
            "trained": [self.trained.tokens, self.trained.texts],
            "leased": [self.leased.tokens, self.leased.texts],
            "beyond": [[number, lengths.tokens, lengths.texts] for number, lengths in self.beyond.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "LengthBias":
        """Continue the statistics; an empty state begins new ones."""
        if not state:
            return cls()
        beyond = {number: Lengths(tokens, texts) for number, tokens, texts in state["beyond"]}
        trained, leased = Lengths(*state["trained"]), Lengths(*state["leased"])
        return cls(trained, leased, beyond, state["newest"])
