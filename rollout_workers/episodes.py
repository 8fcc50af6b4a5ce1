"""Play a worker's episodes side by side, by messages between one engine and many environments.

A slow environment delays no other environment, because the engine generates for them meanwhile.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Lease, Rollout
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.pool import Environments, Failure, Reply, episode_error
from rollout_workers.episode import Action, Episode
from rollout_workers.settings import RolloutSettings
from rollout_workers.turn_texts import TurnTexts, turn_texts

RETURN_TOKENS = 12  # how many tokens longer the actual return may be than the requested one
LOOK_S = 0.05  # an idle engine waits at most this long for environments before it checks its mail


class Episodes:
    """Episodes of one worker: leases in, requests to the engine and rollouts out."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        environments: Environments,
        engine: Engine,
        rollout: RolloutSettings,
        chat: ChatForm | None = None,
    ) -> None:
        self._settings, self._environments = settings, environments
        self._texts: TurnTexts = turn_texts(engine.tokenizer, settings.template, settings.reply_end, chat)
        self._interpreter = settings.interpreter(engine.tokenizer)
        self._window, self._longest = engine.window, rollout.max_prompt_tokens
        self._deterministic = rollout.deterministic
        self._waiting: deque[Lease] = deque()
        self._playing: dict[int, Episode] = {}  # by seat
        self._seats: dict[int, int] = {}  # lease to seat, for episodes that wait for the engine
        self._finished: list[Rollout] = []
        self.num_steps = 0

    def admit(self, leases: Sequence[Lease]) -> None:
        # without a leading blank, because an answer can begin with its end
        stop = self._settings.reply_end.strip() or self._settings.reply_end
        for lease in leases:
            sampling = lease.sampling
            if stop and stop not in sampling.stop:
                sampling = replace(sampling, stop=(*sampling.stop, stop))
            self._waiting.append(replace(lease, sampling=sampling))

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._playing)

    @property
    def num_restarts(self) -> int:
        return self._environments.num_restarts

    def advance(self, engine_is_idle: bool) -> tuple[list[Request], list[Rollout]]:
        """Receive the environments' answers; return requests for the engine and finished rollouts."""
        self._seat_waiting()
        requests = []
        for seat, reply in self._received(LOOK_S if engine_is_idle else 0.0):
            episode = self._playing.get(seat)
            if episode is None:  # its lease was given up meanwhile
                self._environments.give_back(seat)
                continue
            self.num_steps += 1
            request = self._answer(seat, episode, reply)
            if request is not None:
                self._seats[request.id] = seat
                requests.append(request)
        finished, self._finished = self._finished, []
        return requests, finished

    def on_generations(self, generations: Sequence[Generation]) -> None:
        """Pass the engine's answers to the environments."""
        for generation in generations:
            seat = self._seats.pop(generation.request_id)
            self._send(seat, self._playing[seat].on_generation(generation))

    def give_up(self) -> None:
        """Forget every lease; an environment that still owes an answer becomes free when the answer comes."""
        self._waiting.clear()
        for seat in self._seats.values():
            self._environments.give_back(seat)
        self._seats.clear()
        self._playing.clear()
        self._finished.clear()

    def close(self) -> None:
        """Close every environment."""
        self._environments.close()

    def _seat_waiting(self) -> None:
        while self._waiting:
            seat = self._environments.take()
            if seat is None:
                return
            lease = self._waiting.popleft()
            room = self._room(lease)
            self._playing[seat] = Episode(lease, self._settings, self._texts, room, self._interpreter)
            self._environments.reset(seat, lease.prompt, lease.seed)

    def _received(self, wait_s: float) -> list[tuple[int, Reply]]:
        replies = self._environments.receive(wait_s)
        while self._deterministic and self._environments.num_asked:  # speed must not decide anything
            replies += self._environments.receive(LOOK_S)
        return sorted(replies, key=lambda reply: reply[0]) if self._deterministic else replies

    def _answer(self, seat: int, episode: Episode, reply: Reply) -> Request | None:
        """Handle a reply; return the next request; None: an environment acts next or the episode is over."""
        if isinstance(reply, Failure):
            self._play_again(seat, episode, reply)
            return None
        try:
            then = episode.on_observation(reply)
        except Exception as error:  # an environment may send anything, but must not end the worker
            self._finish(seat, episode.failed(episode_error(error)))
            return None
        if isinstance(then, Request):
            return then
        if isinstance(then, Action):
            self._send(seat, then)
        else:
            self._finish(seat, episode.rollout())
        return None

    def _play_again(self, seat: int, episode: Episode, failure: Failure) -> None:
        episode.num_attempts += 1
        if failure.worth_another_try and episode.num_attempts < self._settings.max_attempts:
            self._environments.reset(seat, episode.lease.prompt, episode.lease.seed)
            return
        self._finish(seat, episode.failed(failure.error))

    def _send(self, seat: int, action: Action) -> None:
        ask = self._environments.overhear if action.overheard else self._environments.step
        ask(seat, action.text)

    def _finish(self, seat: int, rollout: Rollout) -> None:
        del self._playing[seat]
        self._environments.give_back(seat)
        self._finished.append(rollout)

    def _room(self, lease: Lease) -> int:
        """Return the limit of a context's tokens that leaves room for an answer."""
        room = self._longest or 2**31
        if self._window is not None:
            answer = 0 if self._texts.ending else lease.sampling.max_tokens  # an encoder holds no answers
            room = min(room, self._window - answer)
        return room - (RETURN_TOKENS if self._settings.target_return is not None else 0)
