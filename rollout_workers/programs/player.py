"""Play a worker's leases by programs: each lease is a process, whose calls become the engine's requests.

    lease ─▶ seat ─▶ program ◀─▶ door of the gateway ◀─▶ engine        all episodes side by side
                        └─▶ ends ─▶ reward ─▶ rollout

The gateway's event loop plays the episodes. The engine's thread only takes requests and returns generations.
"""

import asyncio
import contextlib
import copy
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from contracts.conversations.chat_settings import ChatForm
from contracts.errors import EpisodeError
from contracts.rollout import FinishReason, Lease, Rollout
from contracts.secrets.output import redacted_errors
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.environments.program import ProgramSettings
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.episode_door import EpisodeDoor
from rollout_workers.gateway.frozen_model import FrozenModel
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import Gateway
from rollout_workers.programs.process import ProgramProcess
from rollout_workers.programs.reward import REWARD_FILE, Reward, with_reward
from rollout_workers.programs.warm_parent import ForkedProgram, WarmParent
from rollout_workers.settings import RolloutSettings
from rollout_workers.tools.tool_calls import parser_of

LOOK_S = 0.05  # an idle engine waits at most this long for calls before it checks its mail
CLOSE_S = 4.0  # time for programs to end


class Programs:
    """Stand-in for `rollout_workers.episodes.Episodes`, for environments that are programs."""

    def __init__(
        self, settings: ProgramSettings, engine: Engine, rollout: RolloutSettings, chat: ChatForm | None
    ) -> None:
        self._settings, self._rollout, self._window = settings, rollout, engine.window
        # A copy, because two threads may not share a tokenizer.
        form = None if settings.template == "plain" else chat or _own_template(engine)
        tokenizer = copy.deepcopy(engine.tokenizer)
        self._reader = Reader(tokenizer, form, parser_of(settings.tool_parser, tokenizer))
        self._partner: FrozenModel | None = None
        if settings.partner_options is not None:
            self._partner = FrozenModel(
                settings.partner_options, form is not None, settings.tool_parser, settings.num_parallel
            )
        self._calls = EngineCalls(getattr(engine, "roles", ()))
        self._gateway = Gateway()
        self.address = self._gateway.start()
        warm_words = settings.warm_words()
        self._warm = WarmParent(warm_words, settings.start_timeout_s) if warm_words else None
        self._seats = asyncio.Semaphore(settings.num_parallel)
        # While one thread waits for a program's end, another may finish the last program.
        self._threads = ThreadPoolExecutor(2 * settings.num_parallel, thread_name_prefix="program")
        self._playing: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._finished: list[Rollout] = []
        self._num_given_up = 0
        self.num_steps = 0  # answers to programs, and ends of programs
        self.num_restarts = 0

    # ---- in the engine's thread ----

    def admit(self, leases: Sequence[Lease]) -> None:
        round_now = self._num_given_up
        self._gateway.call_soon(lambda: self._seat(leases, round_now))

    def advance(self, engine_is_idle: bool) -> tuple[list[Request], list[Rollout]]:
        """Return the programs' new requests and the finished rollouts; an idle engine waits for news.

        Raises:
            WorkerError: the frozen partner's engine has failed.
        """
        if self._partner is not None:
            self._partner.check()
        requests = self._calls.take(LOOK_S if engine_is_idle and not self._finished else 0.0)
        with self._lock:
            finished, self._finished = self._finished, []
        self.num_steps += len(finished)
        return requests, finished

    def on_generations(self, generations: Sequence[Generation]) -> None:
        """Pass the engine's answers to the programs."""
        self.num_steps += len(generations)
        self._calls.answer(generations)

    def give_up(self) -> None:
        """Forget every lease, and end its program."""
        with self._lock:
            self._num_given_up += 1
            self._finished.clear()
        with contextlib.suppress(TimeoutError):  # all got the order to end, and their keepers enforce it
            self._gateway.submit(self._end_all()).result(CLOSE_S)

    def close(self) -> None:
        """End every program and the gateway."""
        self.give_up()
        self._gateway.stop()
        if self._partner is not None:
            self._partner.stop()
        if self._warm is not None:
            self._warm.close()
        self._threads.shutdown(wait=False)

    # ---- in the gateway's thread ----

    def _seat(self, leases: Sequence[Lease], round_now: int) -> None:
        for lease in leases:
            task = asyncio.ensure_future(self._play(lease, round_now))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)

    async def _end_all(self) -> None:
        tasks = list(self._playing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S / 2)

    async def _play(self, lease: Lease, round_now: int) -> None:
        async with self._seats:
            try:
                with redacted_errors():
                    rollout = await self._episode(lease)
            except Exception as error:  # a program may do anything, but must not end the worker
                rollout = _failed(lease, _as_episode_error(error))
        with self._lock:
            if round_now == self._num_given_up:
                self._finished.append(rollout)
        self._calls.wake()

    async def _episode(self, lease: Lease) -> Rollout:
        """Play until a program succeeds or exceeds a budget, at most `max_attempts` times.

        Raises:
            EpisodeError: the program failed, hung or wrote no reward at every attempt.
        """
        fault_reward, attempts = self._settings.fault_reward, self._settings.max_attempts
        for attempt in range(1, attempts + 1):
            door = EpisodeDoor(
                lease,
                self._settings,
                self._reader,
                self._calls,
                self._rollout.max_prompt_tokens,
                self._window,
                None if self._partner is None else self._partner.door,
            )
            try:
                return _rollout(door, await self._run(lease, door), self._settings)
            except EpisodeError as error:
                self.num_restarts += 1
                door.is_spent = door.is_spent or door.is_full
                is_over = door.is_cut or door.is_spent  # other attempts would draw the same up to there
                if door.history.calls and (is_over or fault_reward is not None):
                    return _rollout(door, Reward(fault_reward or 0.0, {"fault": 1.0}), self._settings)
                if attempt == attempts:
                    raise error
        raise AssertionError("there is at least one attempt")

    async def _run(self, lease: Lease, door: EpisodeDoor) -> Reward:
        """Run one program to its end; return its reward."""
        key = self._gateway.open(door)
        try:
            reward = await self._run_with(key, lease, door)
        finally:
            door.is_shut = True
            self._gateway.shut(key)
        if not door.history.calls:
            raise EpisodeError(f"the program ended without an answer from the model{door.refusals}")
        if reward is None and self._settings.reward_file:
            raise EpisodeError(
                f"the program wrote no reward: expected a number in the file that {REWARD_FILE} names, or "
                "environment.reward_file=false with reward=NAME"
            )
        return reward or Reward()

    async def _run_with(self, key: str, lease: Lease, door: EpisodeDoor) -> Reward | None:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._threads, self._started, lease, key)
        try:
            program = await asyncio.shield(starting)
            door.begins()
        except asyncio.CancelledError:
            starting.add_done_callback(_end_at_once)
            raise
        try:
            await self._until_it_ends(program, door)
            return await loop.run_in_executor(self._threads, program.reward)
        finally:
            program.end()
            await asyncio.shield(loop.run_in_executor(self._threads, program.close))

    def _started(self, lease: Lease, key: str) -> ProgramProcess:
        if self._warm is not None:
            return ForkedProgram(self._warm, lease, self.address, key)
        return ProgramProcess(self._settings.words(lease.prompt.text), lease, self.address, key)

    async def _until_it_ends(self, program: ProgramProcess, door: EpisodeDoor) -> None:
        """Wait for the program's end, while it makes calls.

        Raises:
            EpisodeError: the program failed, made no call for too long, or flooded the gateway.
        """
        ending = asyncio.get_running_loop().run_in_executor(self._threads, program.wait)
        flooding = asyncio.ensure_future(door.flooded.wait())
        look_s = self._settings.step_timeout_s / 4
        try:
            while (patience_s := door.patience_s) > 0:
                wait_s = min(patience_s, look_s)  # a call meanwhile may leave less
                await asyncio.wait((ending, flooding), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    return ending.result()
                if flooding.done():
                    raise EpisodeError(f"the program kept calling{door.refusals}")
        finally:
            flooding.cancel()
            if not ending.done():
                program.end()
                ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        limit = "step_timeout_s" if door.num_answers else "start_timeout_s"
        raise EpisodeError(
            f"the program made no call for {getattr(self._settings, limit):g} s; environment.{limit}= allows "
            f"for more{door.refusals}"
        )


def _end_at_once(starting: "asyncio.Future[ProgramProcess]") -> None:
    """End a program whose lease was given up during its start."""
    if starting.exception() is None:
        starting.result().end()


def _rollout(door: EpisodeDoor, reward: Reward, settings: ProgramSettings) -> Rollout:
    lease, turns = door.lease, with_reward(door.history.turns(), reward, settings.credit == "split")
    numbers = {"calls": float(len(turns)), "sequences": float(sum(turn.fresh for turn in turns))}
    cut = FinishReason.CUT if door.is_cut else FinishReason.STOP
    return Rollout(
        lease.id,
        lease.group,
        lease.prompt,
        turns,
        FinishReason.LENGTH if door.is_spent else cut,
        info={**numbers, "refused": float(door.num_refused), **reward.info},
    )


def _failed(lease: Lease, error: EpisodeError) -> Rollout:
    return Rollout(lease.id, lease.group, lease.prompt, (), FinishReason.FAILED, error=error)


def _as_episode_error(error: Exception) -> EpisodeError:
    return error if isinstance(error, EpisodeError) else EpisodeError(f"{type(error).__name__}: {error}")


def _own_template(engine: Engine) -> ChatForm | None:
    return ChatForm() if getattr(engine.tokenizer, "chat_template", None) else None
