"""Ask teachers on servers to score a batch's texts before the learner gets the batch.

    rollouts ──▶ the task's teacher ──▶ many calls at once, each retried ──▶ rollouts with scores

If a teacher dies, retry until `patience_s` is over, so that the batch stays the same.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from contracts.conversations.chat import messages_of
from contracts.errors import InputError
from contracts.rollout import Prompt, Rollout, TeacherScores, Turn
from learner.algorithms.distillation import Distillation
from services.training.teachers.aligned_texts import aligned, ends_of_tokens, tokens_with_ends
from services.training.teachers.served_teacher import Place, ServedTeacher

Answer = TypeVar("Answer")
LOOK_S = 0.2  # seconds between two checks whether to stop


@dataclass(frozen=True, slots=True)
class OtherTokenizer:
    """Tokenizers of a teacher and of the student, for texts that both read.

    Args:
        is_chat: whether prompts are conversations. The teacher's chat template then renders them.
    """

    teacher: Any
    student: Any
    is_chat: bool

    def context(self, prompt: Prompt) -> list[int]:
        if self.is_chat:
            rendered: str = self.teacher.apply_chat_template(
                messages_of(prompt), add_generation_prompt=True, tokenize=False
            )
            return list(self.teacher(rendered, add_special_tokens=False)["input_ids"])
        return list(self.teacher(prompt.text)["input_ids"]) or [self.teacher.eos_token_id]


class Teachers:
    """All teachers of a run: one for each part in `teachers`, and `teacher` for all other prompts."""

    def __init__(
        self,
        algorithm: Distillation,
        tokenizers: Mapping[str, OtherTokenizer],
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the servers.

        Args:
            tokenizers: tokenizers for teachers with align=text, by part; `teacher` has the part "".
        """
        assert algorithm.teacher is not None, "the algorithm has no teacher"
        named = {f"algorithm.teachers.{part}": kind for part, kind in algorithm.teachers.items()}
        self._servers = {"": ServedTeacher(algorithm.teacher)} | {
            name.rpartition(".")[2]: ServedTeacher(kind, name) for name, kind in named.items()
        }
        self._tokenizers, self._check_stop = tokenizers, check_stop

    def __call__(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], dict[str, float]]:
        """Return the rollouts with their teachers' scores.

        Raises:
            RunError: a teacher did not answer within its patience.
            InputError: a teacher rejects all texts.
        """
        started, servers = time.perf_counter(), self._servers.values()
        before = sum(server.num_calls for server in servers), sum(server.num_repeated for server in servers)
        try:
            scores = _finished(self._scores(rollouts))
        except BaseExceptionGroup as errors:  # the first error cancelled the other tasks
            raise _first(errors) from None
        num_scored = sum(score is not None for score in scores)
        if rollouts and not num_scored:
            raise InputError(
                f"algorithm.teacher.url={self._servers[''].shown_url} scored none of {len(rollouts)} texts. "
                "Expected a teacher whose window is longer than prompt and response, and, with align=tokens, "
                "with the student's tokenizer"
            )
        after = sum(server.num_calls for server in servers), sum(server.num_repeated for server in servers)
        return [replace(rollout, teacher=score) for rollout, score in zip(rollouts, scores, strict=True)], {
            "teacher/scored": num_scored / max(1, len(rollouts)),
            "teacher/calls": float(after[0] - before[0]),
            "teacher/repeated_calls": float(after[1] - before[1]),
            "time/teacher_s": time.perf_counter() - started,
        }

    async def _scores(self, rollouts: Sequence[Rollout]) -> list[TeacherScores | None]:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            texts = [group.create_task(self._in_turn(part, rollouts)) for part in self._servers]
            answers = [await text for text in texts]
            watch.cancel()
        merged: dict[int, TeacherScores | None] = {}
        for answer in answers:
            merged |= answer
        return [merged[place] for place in range(len(rollouts))]

    async def _watch(self) -> None:
        while True:
            self._check_stop()
            await asyncio.sleep(LOOK_S)

    async def _in_turn(self, part: str, rollouts: Sequence[Rollout]) -> dict[int, TeacherScores | None]:
        """Return one teacher's scores of its rollouts, by index in `rollouts`."""
        server, room = self._servers[part], asyncio.Semaphore(self._servers[part].settings.max_concurrent)
        places = [place for place, rollout in enumerate(rollouts) if self._part(rollout) == part]
        async with server.client() as client:

            async def one(rollout: Rollout) -> TeacherScores | None:
                async with room:
                    if server.settings.align == "text":
                        return await self._by_text(server, client, rollout, self._tokenizers[part])
                    return await _by_tokens(server, client, rollout)

            scores = await asyncio.gather(*(one(rollouts[place]) for place in places))
        return dict(zip(places, scores, strict=True))

    def _part(self, rollout: Rollout) -> str:
        return rollout.prompt.part if rollout.prompt.part in self._servers else ""

    async def _by_text(
        self, server: ServedTeacher, client: httpx.AsyncClient, rollout: Rollout, both: OtherTokenizer
    ) -> TeacherScores | None:
        """Return the scores of spans; None if a rollout has several turns or no text."""
        if len(rollout.turns) != 1:
            return None
        drawn = list(rollout.turns[0].tokens)
        ended = bool(drawn) and drawn[-1] == both.student.eos_token_id
        text, student_ends = ends_of_tokens(both.student, drawn[:-1] if ended else drawn)
        tokens, teacher_ends = tokens_with_ends(both.teacher, text)
        if ended:
            student_ends.append(len(text) + 1)
            if both.teacher.eos_token_id is not None:
                tokens.append(both.teacher.eos_token_id)
                teacher_ends.append(len(text) + 1)
        context = both.context(rollout.prompt)
        if not tokens or (places := await server.places(client, [*context, *tokens])) is None:
            return None
        logprobs = [place[token] for token, place in zip(tokens, places[len(context) - 1 :], strict=True)]
        return aligned(student_ends, teacher_ends, logprobs)


def _finished(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of a coroutine, even in a thread with a running event loop, such as a notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _by_tokens(
    server: ServedTeacher, client: httpx.AsyncClient, rollout: Rollout
) -> TeacherScores | None:
    """Return the scores of the student's tokens, segment by segment; None if the server rejects a segment."""
    drawn: list[int] = []
    at: list[Place] = []
    for segment in rollout.segments:
        tokens, is_drawn = _sequence(segment)
        places = await server.places(client, tokens)
        if places is None:
            return None
        both = zip(tokens[1:], places, is_drawn[1:], strict=True)
        chosen = [(token, place) for token, place, drew in both if drew]
        drawn += [token for token, _ in chosen]
        at += [place for _, place in chosen]
    logprobs = tuple(place[token] for token, place in zip(drawn, at, strict=True))
    ends = (True,) * len(drawn)
    count = server.settings.top_k
    if not count:
        return TeacherScores(logprobs, ends)
    top = [list(place.items())[:count] for place in at]
    return TeacherScores(
        logprobs,
        ends,
        tuple(tuple(token for token, _ in place) for place in top),
        tuple(tuple(logprob for _, logprob in place) for place in top),
    )


def _sequence(segment: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    """Return the tokens of consecutive turns, and which of them the model sampled."""
    tokens, is_drawn = list[int](), list[bool]()
    for turn in segment:
        tokens += [*turn.observation, *turn.tokens]
        is_drawn += [False] * turn.num_observed + [True] * turn.num_tokens
    return tokens, is_drawn
