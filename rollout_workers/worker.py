"""Rollout worker: one thread steps an engine; calls from outside leave messages for the thread.

    submit ──▶ mailbox ──▶ [ admit · step · ship ]* ──▶ outbox ──▶ poll
    load_weights ──▶ mailbox ──▶ load between two steps · probe ──▶ answer
    receive_weights ──▶ mailbox ──▶ receive from the learner ──▶ answer; settle_weights ──▶ probe ──▶ step
    sleep ──▶ mailbox ──▶ if idle, the engine leaves its GPU's memory until the next call

`SingleTurns` plays the admitted leases, or `Episodes` if there are environments. They make the engine's
requests and turn its generations into rollouts.

Only the thread touches the engine, so weights never change within a step. The worker answers calls while the
engine computes, so a slow worker differs from a hung one. This is a plain class; the fleet runs it in Ray
actors.
"""

import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from contracts.components import find
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError, WeightsError, WorkerError
from contracts.processes import timeline
from contracts.processes.garbage import uncollected
from contracts.processes.timeline import Span
from contracts.records import by_position
from contracts.rollout import Lease, MaskRule, Rollout
from contracts.secrets.output import redacted_errors
from contracts.secrets.redaction import redact
from contracts.weights import WeightGroup, WeightManifest
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Arrays, Engine, ReceivingEngine
from rollout_workers.engines.traits import traits_of
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.pool import LocalEnvironments, MakeEnvironments
from rollout_workers.environments.program import ProgramSettings
from rollout_workers.environments.single_turn import SingleTurn
from rollout_workers.episodes import Episodes
from rollout_workers.settings import RolloutSettings
from rollout_workers.single_turns import SingleTurns
from rollout_workers.weights.received_weights import Pushed, ReceivedWeights

if TYPE_CHECKING:
    from rollout_workers.programs.player import Programs

Result = TypeVar("Result")

LONGEST_SPAN_S = 5.0  # longest span of generation on the timeline: an asynchronous run's worker never stops


@by_position
@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Answer to a poll.

    Example: two rollouts are done, five continue, 412 tokens were generated since the worker's start:
    `WorkerReport(rollouts=(…, …), num_active=5, num_generated=412, weight_version=7)`
    """

    rollouts: tuple[Rollout, ...]
    num_active: int
    num_generated: int
    weight_version: int
    num_steps: int = 0  # steps of environments
    num_restarts: int = 0  # environments that died, hung or raised
    idle_s: float = 0.0  # since its start
    num_cancels: int = 0  # cancellations; earlier leases are given up
    spans: tuple[Span, ...] = ()  # spans of its timeline since the last poll


class RolloutWorker:
    """Worker that turns leases into rollouts with its engine."""

    def __init__(
        self,
        model: str,
        tokenizer: str,
        max_length: int | None,
        engine: str,
        settings: RolloutSettings,
        mask_rule: MaskRule | None = None,
        revision: str | None = None,
        environment: EnvironmentSettings | None = None,
        start_environments: MakeEnvironments = LocalEnvironments,
        lora_rank: int | None = None,
        chat: ChatForm | None = None,
        roles: tuple[str, ...] = (),
        cache_bytes: int | None = None,
    ) -> None:
        def make_engine() -> Engine:
            started: Engine = find("engine", engine, ENGINES)(
                *(model, tokenizer, max_length, settings, mask_rule, revision),
                **_for_adapter(engine, lora_rank, roles),
                **({} if cache_bytes is None else {"cache_bytes": cache_bytes}),  # only for vLLM
            )
            return started

        self._make_engine = make_engine
        self._settings, self._environment, self._chat = settings, environment, chat
        self._start_environments = start_environments
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._outbox: list[Rollout] = []
        self._shipped = threading.Condition()
        self._leases: dict[int, Lease] = {}
        self._received = ReceivedWeights()
        self._is_unproved = False  # weights were received but not yet proved by a probe
        self._failure: str | None = None
        self._ready: Future[int] = Future()
        self._idle_s, self._idle_since = 0.0, math.inf
        self._num_cancels = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def ready(self) -> int:
        """Wait until the engine runs; return the process id."""
        return self._ready.result()

    def submit(self, leases: Sequence[Lease]) -> None:
        """Take leases; they are admitted in order, before the next step."""
        self._post(lambda: self._admit(leases))

    def poll(self, wait_s: float) -> WorkerReport:
        """Return finished rollouts as soon as there is one, at the latest after `wait_s`.

        Raises:
            WorkerError: the engine's thread has ended.
        """
        with self._shipped:
            self._shipped.wait_for(lambda: self._outbox or self._failure, timeout=wait_s)
            if self._failure:
                raise WorkerError(f"the engine's thread ended:\n{self._failure}")
            rollouts, self._outbox = tuple(self._outbox), []
            num_cancels = self._num_cancels
        return WorkerReport(
            rollouts,
            len(self._leases),
            self._engine.num_generated,
            self._engine.weight_version,
            self._play.num_steps,
            self._play.num_restarts,
            self._idle_s + max(0.0, time.monotonic() - self._idle_since),
            num_cancels,
            timeline.drain(),
        )

    def load_weights(
        self, manifest: WeightManifest, arrays: Pushed, mask_arrays: Arrays | None = None
    ) -> float:
        """Load weights between two steps and check the probe; return the seconds of loading.

        Load the mask model's weights (NLPO) only if they have changed.

        Raises:
            WeightsError: the probe's log-probabilities differ from the learner's, or the arrays change
                weights that this worker lacks.
        """
        return self._call(lambda: self._load(manifest, arrays, mask_arrays))

    def is_between_steps(self) -> bool:
        """Answer once the engine's thread takes messages, so that the next call finds it there."""
        return self._call(lambda: True)

    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        """Join a group in which the learner sends weights; return why that failed, or None."""
        return self._call(lambda: self._receiver.join_group(group, first_rank))

    def receive_weights(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        """Receive weights from the learner; return why the transfer broke off, or None.

        The worker then generates nothing until `settle_weights` or `load_weights`.
        """
        return self._call(lambda: self._receive(manifest, handles))

    def settle_weights(self, manifest: WeightManifest, mask_arrays: Arrays | None = None) -> None:
        """Check the probe of received weights, and continue. The engine takes the rest of its memory.

        Raises:
            WeightsError: the probe's log-probabilities differ from the learner's.
        """
        self._call(lambda: self._settle(manifest, mask_arrays))

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of each text's tokens after the first, while generation goes on."""
        return self._call(lambda: self._engine.logprobs(texts))

    def sleep(self) -> bool:
        """Leave the GPU's memory to others until the next leases, weights or texts come.

        Return False if the worker is busy and ignores the call.
        """
        return self._call(self._sleep)

    def cancel_all(self) -> None:
        """Forget all leases, finished or not."""
        self._call(self._cancel)

    def close(self) -> None:
        """Close the environments before the process ends, because only they can end what they started."""
        self._call(lambda: self._play.close())

    def apply(self, func: Callable[..., Result], **arguments: Any) -> Result:
        """Call a function on this worker, as Ray's actor manager does for every call."""
        return func(self, **arguments)

    def ping(self) -> str:
        return "pong"

    # ---- below: run by the engine's thread ----

    def _run(self) -> None:
        try:
            with timeline.span("engine starts"), uncollected():
                self._engine = self._make_engine()
                self._play = self._player()
            self._ready.set_result(os.getpid())
            while True:
                if not self._has_work:
                    self._wait_for_mail()
                self._take_mail()
                self._work()
        except Exception as error:  # a thread's exception would vanish, so the next poll raises it
            reason = redact(str(error))
            if not self._ready.done():
                is_input = isinstance(error, InputError)
                self._ready.set_exception(
                    InputError(reason) if is_input else WorkerError(f"the engine did not start: {reason}")
                )
            with self._shipped:
                self._failure = redact(traceback.format_exc())
                self._shipped.notify_all()

    @property
    def _has_work(self) -> bool:
        return not self._is_unproved and bool(self._leases or self._engine.num_unfinished)

    @property
    def _receiver(self) -> ReceivingEngine:
        return cast(ReceivingEngine, self._engine)

    def _work(self) -> None:
        """Advance until no work is left, for some seconds at most; take messages between two steps."""
        if self._is_unproved:
            return
        if not self._has_work:
            self._advance()
            return
        until = time.monotonic() + LONGEST_SPAN_S
        with timeline.span("generates"):
            self._advance()
            while self._has_work and time.monotonic() < until:
                self._take_mail()
                self._advance()

    def _player(self) -> "Episodes | SingleTurns | Programs":
        environment = self._environment
        if environment is None or isinstance(environment, SingleTurn):
            return SingleTurns()
        if isinstance(environment, ProgramSettings):
            from rollout_workers.programs.player import Programs  # imports a web server

            return Programs(environment, self._engine, self._settings, self._chat)
        environments = self._start_environments(environment)
        return Episodes(environment, environments, self._engine, self._settings, self._chat)

    def _advance(self) -> None:
        """Pass requests to the engine, generations to the environments, and finished rollouts on."""
        requests, rollouts = self._play.advance(engine_is_idle=not self._engine.num_unfinished)
        for request in requests:
            self._engine.add(request)
        self._ship(rollouts)
        if self._engine.num_unfinished:
            self._play.on_generations(self._engine.step())

    def _wait_for_mail(self) -> None:
        self._idle_since = time.monotonic()
        act = self._mailbox.get()
        self._idle_s += time.monotonic() - self._idle_since
        self._idle_since = math.inf
        act()

    def _take_mail(self) -> None:
        while True:
            try:
                act = self._mailbox.get_nowait()
            except queue.Empty:
                return
            act()

    def _admit(self, leases: Sequence[Lease]) -> None:
        self._leases |= {lease.id: lease for lease in leases}
        self._play.admit(leases)

    def _ship(self, rollouts: Sequence[Rollout]) -> None:
        if not rollouts:
            return
        for rollout in rollouts:
            del self._leases[rollout.lease_id]
        with self._shipped:
            self._outbox += rollouts
            self._shipped.notify_all()

    def _load(self, manifest: WeightManifest, arrays: Pushed, mask_arrays: Arrays | None) -> float:
        started = time.perf_counter()
        with timeline.span("loads weights"):
            self._engine.load_weights(manifest, self._received.take(manifest, arrays))
        seconds = time.perf_counter() - started
        self._settle(manifest, mask_arrays)
        return seconds

    def _receive(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        self._is_unproved = True
        with timeline.span("receives weights"):
            return self._receiver.receive_weights(manifest, handles)

    def _settle(self, manifest: WeightManifest, mask_arrays: Arrays | None) -> None:
        if mask_arrays is not None and manifest.mask_version != self._engine.mask_version:
            with timeline.span("loads weights"):
                masking: Any = self._engine  # a `MaskingEngine`; other engines are refused before they start
                masking.load_mask(manifest, mask_arrays)
        with timeline.span("checks weights"):
            _check(manifest, self._engine.logprobs([manifest.probe.tokens]))
            for role, adapter in (manifest.roles or {}).items():
                engine: Any = self._engine  # vLLM's, because no other engine has adapters
                _check(adapter, engine.logprobs([adapter.probe.tokens], role), f" for policy/{role}")
        self._is_unproved = False

    def _sleep(self) -> bool:
        if self._leases or self._engine.num_unfinished:
            return False
        self._engine.sleep()
        return True

    def _cancel(self) -> None:
        self._engine.abort_all()
        self._play.give_up()
        self._leases.clear()
        with self._shipped:
            self._outbox.clear()
            self._num_cancels += 1

    def _post(self, act: Callable[[], None]) -> None:
        if self._failure:
            raise WorkerError(f"the engine's thread ended:\n{self._failure}")
        self._mailbox.put(act)

    def _call(self, act: Callable[[], Result]) -> Result:
        """Let the engine's thread run `act`, and wait for the result."""
        future: Future[Result] = Future()

        def answer() -> None:
            try:
                with redacted_errors():
                    future.set_result(act())
            except Exception as error:  # raised again in the caller's thread
                future.set_exception(error)

        self._post(answer)
        while not wait([future], timeout=1.0).done:
            if self._failure:  # the thread ended before `act`
                raise WorkerError(f"the engine's thread ended:\n{self._failure}")
        return future.result()


def _check(manifest: WeightManifest, scored: Sequence[tuple[float, ...]], whose: str = "") -> None:
    """Check that an engine's log-probabilities of a probe equal the learner's.

    Raises:
        WeightsError: the weights differ.
    """
    (got,), probe = scored, manifest.probe
    worst = max(abs(a - b) for a, b in zip(got, probe.logprobs, strict=True))
    if not worst <= probe.tolerance:  # NaN must fail, too
        raise WeightsError(
            f"version {manifest.version} arrived wrong{whose}: the probe's log-probabilities differ by "
            f"{worst:.3g} from the learner's, more than {probe.tolerance:g}"
        )


def _for_adapter(engine: str, lora_rank: int | None, roles: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of an engine that serves an adapter, or one for each role, beside the model.

    Raises:
        InputError: the engine can't serve adapters.
    """
    if lora_rank is None:
        return {}
    if not traits_of(engine).serves_adapters:
        raise InputError(
            f"model.adapter.serve=adapter: rollout.engine={engine} does not serve adapters; expected "
            "model.adapter.serve=merged"
        )
    return {"lora_rank": lora_rank, "roles": roles}
