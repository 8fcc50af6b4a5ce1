"""Generate plain texts: each lease is one request, each generation one rollout, without an environment."""

from collections.abc import Sequence

from contracts.rollout import FinishReason, Lease, Rollout, Turn
from rollout_workers.engines.base import Generation, Request


class SingleTurns:
    """Stand-in for `rollout_workers.episodes.Episodes`, for prompts with one answer."""

    num_steps = 0
    num_restarts = 0

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._requests: list[Request] = []
        self._finished: list[Rollout] = []

    def admit(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._leases[lease.id] = lease
            self._requests.append(Request(lease.id, lease.tokens, lease.sampling, lease.seed))

    def advance(self, engine_is_idle: bool) -> tuple[list[Request], list[Rollout]]:
        requests, self._requests = self._requests, []
        finished, self._finished = self._finished, []
        return requests, finished

    def on_generations(self, generations: Sequence[Generation]) -> None:
        self._finished += [
            _rollout(self._leases.pop(generation.request_id), generation) for generation in generations
        ]

    def give_up(self) -> None:
        self._leases.clear()
        self._requests.clear()
        self._finished.clear()

    def close(self) -> None:
        pass


def _rollout(lease: Lease, generation: Generation) -> Rollout:
    turn = Turn(
        observation=lease.tokens,
        tokens=generation.tokens,
        text=generation.text,
        behavior_logprobs=generation.behavior_logprobs,
        weight_versions=generation.versions,
    )
    return Rollout(lease.id, lease.group, lease.prompt, (turn,), FinishReason(generation.finish_reason))
