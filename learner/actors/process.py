"""Run a learner in its own process, which answers while its models load and while it computes.

The command also imports this module. So only `load_learner`, which the process calls, imports torch.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from contracts.clients import TokenNumbers
from contracts.processes import timeline
from contracts.processes.garbage import uncollected
from contracts.processes.timeline import Span
from contracts.rollout import Rollout, Sampling
from contracts.secrets.output import guard_process, redacted_errors
from contracts.weights import WeightGroup, WeightManifest
from learner.algorithms.base import Algorithm
from learner.distributed.place import Place, this_place
from learner.distributed.rendezvous import Rendezvous
from learner.settings import LearnerSettings, ModelSettings

if TYPE_CHECKING:
    from learner.learner import Learner
    from learner.publishing.changed_elements import Array, Sent
    from learner.publishing.weight_links import Handles
    from learner.publishing.weight_sender import WeightSender

Progress = tuple[str, int, int]  # (phase, done, total)
IDLE = "idle"
SENDING = "send weights"  # workers wait for each of its steps
CALLS_AT_ONCE = 3  # an update, the full weights for a late worker, and the progress


def load_learner(
    model: ModelSettings,
    algorithm: Algorithm,
    settings: LearnerSettings,
    *,
    seed: int,
    iterations: int,
    sampling: Sampling,
    max_turns: int,
    shares_gpu: bool,
    engine_rounds: bool,
    rendezvous: Rendezvous | None,
) -> "Learner":
    """Return the learner, with its models loaded."""
    from learner.learner import Learner
    from learner.role_learners import RoleLearners

    kind: Any = RoleLearners if model.adapter.roles else Learner
    learner: Learner = kind(
        model,
        algorithm,
        settings,
        seed=seed,
        iterations=iterations,
        sampling=sampling,
        max_turns=max_turns,
        shares_gpu=shares_gpu,
        engine_rounds=engine_rounds,
        rendezvous=rendezvous,
    )
    return learner


class LearnerProcess:
    """Learner in a Ray actor that takes `CALLS_AT_ONCE` calls; `learner/actors/group.py` starts it."""

    def __init__(self, make_learner: Callable[[], "Learner"]) -> None:
        guard_process()
        timeline.switch_on_where_asked()
        self._make_learner = make_learner
        self._learner: Learner | None = None
        self._sender: WeightSender | None = None
        self._doing = IDLE

    def start(self) -> str | None:
        """Load the models; return a message if torch could not compile them, else None.

        Raises:
            InputError: the model can't be used.
        """
        with redacted_errors(), timeline.span("loads models"), uncollected():
            from learner.publishing.weight_sender import WeightSender

            learner = self._make_learner()
            # A sender does not send roles' adapters, because preflight allows them only as objects.
            self._sender, self._learner = WeightSender(learner), learner
            return learner.compiled.failure

    def progress(self) -> Progress:
        """Return an update's progress or, during another call, that call's name."""
        if self._learner is None:
            return "start", 0, 1
        progress = self._learner.progress()
        if self._doing == SENDING and self._sender is not None:
            return SENDING, *self._sender.progress
        return (self._doing, 0, 1) if progress[0] == IDLE else progress

    def pid(self) -> int:
        return os.getpid()

    def place(self) -> Place:
        """Return the node and the GPUs of this process."""
        return this_place()

    def take_spans(self) -> tuple[Span, ...]:
        """Return this process's timeline since the last call."""
        return timeline.drain()

    # ---- the learner's methods, once it has started ----

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        with self._at(IDLE, "trains") as learner:  # the learner itself reports an update's progress
            return learner.update(rollouts)

    def measure(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        with self._at("measure") as learner:
            return learner.measure(rollouts)

    def logprobs(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        with self._at("logprobs") as learner:
            return learner.logprobs(rollouts)

    def token_numbers(self) -> list[TokenNumbers]:
        with self._at("token numbers") as learner:
            return learner.token_numbers

    def plan(self, iterations: int) -> None:
        with self._at("plan") as learner:
            learner.iterations = iterations

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> None:
        with self._at("score", "scores early") as learner:
            learner.score_early(rollouts, num_rollouts)

    def publish(self, engine_dtype: str) -> "tuple[WeightManifest, dict[str, Sent]]":
        with self._at("publish") as learner:
            return learner.publish(engine_dtype)

    def publish_mask(self, engine_dtype: str) -> "tuple[None, dict[str, Array] | None]":
        """Return None, for which a caller can wait, and the mask model's arrays."""
        with self._at("publish_mask") as learner:
            return None, learner.publish_mask(engine_dtype)

    def published_whole(self) -> "tuple[WeightManifest, dict[str, Array]]":
        with self._at("published_whole") as learner:
            return learner.published_whole()

    # ---- weights that a group broadcasts ----

    def announce(self, engine_dtype: str) -> WeightManifest:
        with self._at("publish") as learner, learner.masters.exact():
            return self._sending.announce(engine_dtype)

    def new_address(self, transport: str) -> str:
        return self._sending.new_address(transport)

    def join_group(self, group: WeightGroup) -> str | None:
        with self._at(SENDING, "joins the workers"):
            return self._sending.join(group)

    def send_weights(self) -> "tuple[Handles, str | None]":
        with self._at(SENDING) as learner, learner.masters.exact():
            return self._sending.send()

    def keep_weights(self) -> None:
        with self._at(SENDING) as learner, learner.masters.exact():
            self._sending.keep()

    def release_weights(self) -> None:
        with self._at(SENDING):
            self._sending.release()

    def sent_whole(self) -> "tuple[WeightManifest, dict[str, Array]]":
        """Return the manifest and all arrays of the last broadcast, even while an update runs."""
        return self._sending.whole()

    @property
    def _sending(self) -> "WeightSender":
        assert self._sender is not None, "it has to start first"
        return self._sender

    def save(self, folder: str) -> None:
        with self._at("save") as learner:
            learner.save(folder)

    def load(self, folder: str) -> None:
        with self._at("load") as learner:
            learner.load(folder)

    def export(self, folder: str) -> None:
        with self._at("export") as learner:
            learner.export(folder)

    @contextlib.contextmanager
    def _at(self, what: str, shown: str | None = None) -> "Iterator[Learner]":
        from learner.distributed.device import enter

        assert self._learner is not None, "it has to start first"
        self._doing = what
        try:
            with redacted_errors(), timeline.span(shown or what):
                enter(self._learner.device)  # Ray calls from any of its threads
                yield self._learner
        finally:
            self._doing = IDLE
