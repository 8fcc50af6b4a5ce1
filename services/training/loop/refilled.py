"""Batches in which every prompt teaches something: dynamic sampling, Yu et al. 2025 (arXiv 2503.14476), §3.2.

    round 0   lease 8 prompts   ─▶ ■ ■ □ ■ □ □ ■ □     □: all rewards of the prompt are equal; dropped
    round 1   lease 8 more      ─▶ ■ □ ■ ■ □ ■ ■ □     the first four fill the batch; the fifth is surplus

A further round leases as many prompts as the share of teaching prompts suggests, at most an iteration's. So
an iteration's leases depend only on its rewards, and a resumed run leases the same prompts.
"""

import math
from dataclasses import dataclass, field

from contracts.errors import RunError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from services.training.loop.batches import Online
from services.training.loop.collecting import Collected, expect_some


@dataclass(slots=True)
class Tally:
    """Counts of one iteration's prompts: leased = kept + constant + surplus + lost."""

    wanted: int
    rounds: int = 0
    leased: int = 0
    constant: int = 0  # prompts whose rewards are all equal
    lost: int = 0  # prompts without a scored rollout
    surplus: int = 0  # prompts that teach something but exceed the batch
    kept: int = 0
    rewards: list[float] = field(default_factory=list)  # rewards of all rollouts, including dropped ones
    num_tokens: int = 0

    @property
    def missing(self) -> int:
        return self.wanted - self.kept

    @property
    def next_round(self) -> int:
        """Return how many prompts the next round leases.

        >>> Tally(wanted=8).next_round, Tally(wanted=8, leased=8, kept=4).next_round
        (8, 8)
        >>> Tally(wanted=8, leased=8, kept=6).next_round, Tally(wanted=8, leased=8, kept=0).next_round
        (3, 8)
        """
        needed = math.ceil(self.missing * self.leased / self.kept) if self.kept else self.wanted
        return min(self.wanted, needed)

    def metrics(self) -> dict[str, float]:
        counts = ("rounds", "leased", "kept", "constant", "surplus", "lost")
        return {f"refill/{name}": float(getattr(self, name)) for name in counts} | {
            "refill/full_share": self.kept / self.wanted,
            "refill/reward_mean": sum(self.rewards) / len(self.rewards),
        }


@dataclass(eq=False)
class Refilled(Online):
    """Rollouts of prompts from which the algorithm can learn. The policy generates them.

    An iteration makes up to `algorithm.refills` further rounds. Then it trains on the prompts that it has.
    """

    algorithm: Algorithm

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tally = Tally(self.num_prompts)
        self._has_told = False

    def next(self, done: int) -> Collected:
        """Return a batch of prompts to learn from; lease more until it is full or no refill is left.

        Raises:
            RunError: every rollout was lost, or the algorithm can learn from no prompt of any round.
            InputError: every rollout was lost, for a reason that the user can fix.
        """
        self.meter.begin()
        whole, self._tally = Collected(), Tally(self.num_prompts)
        tally = self._tally
        while tally.missing and tally.rounds <= self.algorithm.refills:
            leases = self.prompts.lease(tally.next_round)
            collected = self.collector(leases)
            groups = {lease.group for lease in leases}
            self.prompts.finish(len(groups), collected.rollouts)
            collected.rollouts = self._taught(collected.rollouts, groups)
            whole.add(collected)
            tally.rounds += 1
        if not tally.rewards:
            return expect_some(whole, self.collector.failures, done + 1)
        if not tally.kept:
            raise RunError(f"iteration {done + 1}: {nothing_learned(tally, self.algorithm.refills)}")
        if tally.missing and not self._has_told:
            self._has_told = True
            self.collector.console.warn(not_full(tally, self.algorithm.refills))
        return whole

    def _taught(self, rollouts: list[Rollout], leased: set[int]) -> list[Rollout]:
        """Return a round's rollouts to train on, for as many prompts as the batch lacks; count the others."""
        tally, scored = self._tally, {rollout.group for rollout in rollouts}
        teaching = self.algorithm.teaching(rollouts)
        groups = sorted({rollout.group for rollout in teaching})
        kept = set(groups[: tally.missing])
        tally.leased += len(leased)
        tally.lost += len(leased - scored)
        tally.constant += len(scored) - len(groups)
        tally.surplus += len(groups) - len(kept)
        tally.kept += len(kept)
        tally.rewards += [rollout.total_reward for rollout in rollouts]
        tally.num_tokens += sum(rollout.num_generated for rollout in rollouts)
        return [rollout for rollout in teaching if rollout.group in kept]

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return the counts of prompts, and the throughput including dropped rollouts."""
        speed = {"throughput/generated_tokens_per_s": self._tally.num_tokens / max(batch.rollout_s, 1e-9)}
        return super().describe(batch, iteration_s) | speed | self._tally.metrics()


def nothing_learned(tally: Tally, refills: int) -> str:
    """Return why no prompt of an iteration teaches anything, and what to do."""
    lowest, highest = min(tally.rewards), max(tally.rewards)
    earned = f"all are {lowest:g}" if lowest == highest else f"they go from {lowest:g} to {highest:g}"
    return (
        f"none of {tally.leased} prompts, in {tally.rounds} rounds, has responses with different "
        f"rewards ({earned}), so there is nothing to learn from. Expected prompts that the model solves now "
        f"and then, a reward with more steps, a larger rollout.group_size or a higher rollout.temperature; "
        f"or algorithm.max_refills above {refills}"
    )


def not_full(tally: Tally, refills: int) -> str:
    """Return a message about a batch that is not full."""
    return (
        f"after {refills} refills (algorithm.max_refills) a batch has {tally.kept} of {tally.wanted} "
        f"prompts: of {tally.leased} leased, {tally.constant} have responses of equal rewards. The run "
        f"trains on the incomplete batch; see refill/full_share for every iteration"
    )
