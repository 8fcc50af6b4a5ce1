"""Batches in which every prompt teaches something: dynamic sampling, Yu et al. 2025 (arXiv 2503.14476), §3.2.

    round 0   lease 8 prompts   ─▶ ■ ■ □ ■ □ □ ■ □     □: all rewards of the prompt are equal, dropped
    round 1   lease 8 more      ─▶ ■ □ ■ ■ □ ■ ■ □     the first four fill the batch; the last one is surplus

A further round leases as many prompts as the share that taught so far suggests, at most an iteration's. So
an iteration's leases follow from its rewards alone, and a resumed run leases the same.
"""

import math
from dataclasses import dataclass, field

from contracts.clients import FleetClient
from contracts.errors import RunError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from reward_servers.settings import Part
from services.loop.batches import Online
from services.loop.collecting import Collected, Collector, expect_some
from services.sources.leasing import LeaseSource


@dataclass(slots=True)
class Tally:
    """Account of one iteration's prompts: leased = kept + constant + surplus + lost."""

    wanted: int
    rounds: int = 0
    leased: int = 0
    constant: int = 0  # all rewards equal
    lost: int = 0  # no rollout could be scored
    surplus: int = 0  # taught something, and the batch was full
    kept: int = 0
    rewards: list[float] = field(default_factory=list)  # of all rollouts, dropped ones too
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


class Refilled(Online):
    """Rollouts that the policy generates, of prompts from which the algorithm can learn.

    An iteration makes up to `algorithm.refills` further rounds. After them it trains on what there is.
    """

    def __init__(
        self,
        prompts: LeaseSource,
        num_prompts: int,
        collector: Collector,
        workers: FleetClient,
        rewards: tuple[Part, ...],
        algorithm: Algorithm,
    ) -> None:
        super().__init__(prompts, num_prompts, collector, workers, rewards)
        self._algorithm, self._console = algorithm, collector.console
        self._tally = Tally(num_prompts)
        self._has_told = False

    def next(self, done: int) -> Collected:
        """Return a batch of prompts to learn from; lease more until it is full or no refill is left.

        Raises:
            RunError: every rollout was lost, or the algorithm can learn from no prompt of any round.
            InputError: every rollout was lost, for a reason that the user can fix.
        """
        self._meter.begin()
        whole, self._tally = Collected(), Tally(self._num_prompts)
        tally = self._tally
        while tally.missing and tally.rounds <= self._algorithm.refills:
            leases = self._prompts.lease(tally.next_round)
            found = self._collect(leases)
            asked = {lease.group for lease in leases}
            self._prompts.finish(len(asked), found.rollouts)
            found.rollouts = self._taught(found.rollouts, asked)
            whole.add(found)
            tally.rounds += 1
        if not tally.rewards:
            return expect_some(whole, self._failures, done + 1)
        if not tally.kept:
            raise RunError(f"iteration {done + 1}: {_nothing_learned(tally, self._algorithm.refills)}")
        if tally.missing and not self._has_told:
            self._has_told = True
            self._console.warn(_not_full(tally, self._algorithm.refills))
        return whole

    def _taught(self, rollouts: list[Rollout], asked: set[int]) -> list[Rollout]:
        """Return a round's rollouts to train on, as many prompts as are missing; count the others."""
        tally, scored = self._tally, {rollout.group for rollout in rollouts}
        teaching = self._algorithm.teaching(rollouts)
        groups = sorted({rollout.group for rollout in teaching})
        kept = set(groups[: tally.missing])
        tally.leased += len(asked)
        tally.lost += len(asked - scored)
        tally.constant += len(scored) - len(groups)
        tally.surplus += len(groups) - len(kept)
        tally.kept += len(kept)
        tally.rewards += [rollout.total_reward for rollout in rollouts]
        tally.num_tokens += sum(rollout.num_generated for rollout in rollouts)
        return [rollout for rollout in teaching if rollout.group in kept]

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return the account of the prompts, and the throughput with what was dropped."""
        speed = {"throughput/generated_tokens_per_s": self._tally.num_tokens / max(batch.rollout_s, 1e-9)}
        return super().describe(batch, iteration_s) | speed | self._tally.metrics()


def _nothing_learned(tally: Tally, refills: int) -> str:
    lowest, highest = min(tally.rewards), max(tally.rewards)
    earned = f"all are {lowest:g}" if lowest == highest else f"they go from {lowest:g} to {highest:g}"
    return (
        f"none of {tally.leased} prompts, asked in {tally.rounds} rounds, has responses with different "
        f"rewards ({earned}), so there is nothing to learn from. Expected prompts that the model solves now "
        f"and then, a reward with more steps, a larger rollout.group_size or a higher rollout.temperature; "
        f"or algorithm.max_refills above {refills}"
    )


def _not_full(tally: Tally, refills: int) -> str:
    return (
        f"after {refills} refills (algorithm.max_refills) a batch has {tally.kept} of {tally.wanted} "
        f"prompts: of {tally.leased} leased, {tally.constant} have responses of equal rewards. The run "
        f"trains on what there is; refill/full_share tells it of every iteration"
    )
