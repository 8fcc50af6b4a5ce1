"""Batches to which a teacher adds contexts or scores before the learner gets them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from contracts.conversations.encoding import marks_of
from contracts.errors import InputError
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.algorithms.distillation import Distillation
from learner.algorithms.self_distillation import SelfDistillation
from learner.settings import ModelSettings
from services.models.files import read_model, shared_window
from services.training.loop.batches import Around, BatchSource
from services.training.loop.collecting import Collected
from services.training.sources.reading import PromptReading
from services.training.teachers.asking import OtherTokenizer, Teachers
from services.training.teachers.teacher_prompts import TeacherPrompts

# Returns the rollouts with the teacher's additions, and metrics.
Teach = Callable[[Sequence[Rollout]], tuple[list[Rollout], dict[str, float]]]


@dataclass(eq=False)
class Taught(Around):
    """Batches of another source. `teach` adds to the rollouts of each batch."""

    teach: Teach
    metrics: dict[str, float] = field(default_factory=dict)

    def next(self, done: int) -> Collected:
        batch = super().next(done)
        batch.rollouts, self.metrics = self.teach(batch.rollouts)
        return batch

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        return super().describe(batch, iteration_s) | self.metrics


def taught(
    source: BatchSource,
    algorithm: Algorithm,
    model: ModelSettings,
    reading: PromptReading,
    tokenizer: Any,
    check_stop: Callable[[], None],
) -> BatchSource:
    """Return the source, wrapped with the algorithm's teacher if it has one.

    Args:
        reading: how the run reads training prompts.
        tokenizer: the student's tokenizer.
    """
    if algorithm.asks_teacher:
        asking = cast(Distillation, algorithm)
        tokenizers = _other_tokenizers(asking, tokenizer, reading.is_chat)
        return Taught(source, Teachers(asking, tokenizers, check_stop))
    if algorithm.own_teacher is None:
        return source
    distilling, window = cast(SelfDistillation, algorithm), shared_window(read_model(model))
    prompts = TeacherPrompts(distilling, reading, reading.uncut(), window, marks_of(tokenizer))
    return Taught(source, prompts)


def _other_tokenizers(algorithm: Distillation, tokenizer: Any, is_chat: bool) -> dict[str, OtherTokenizer]:
    """Return the tokenizers of teachers that don't use the student's, by part; `teacher` has the part "".

    Raises:
        InputError: a tokenizer can't be loaded, or doesn't return the offsets of tokens.
    """
    from transformers import AutoTokenizer

    others: dict[str, OtherTokenizer] = {}
    for part, server in {"": algorithm.teacher, **algorithm.teachers}.items():
        if server is None or server.tokenizer is None:
            continue
        where = f"algorithm.{f'teachers.{part}' if part else 'teacher'}.tokenizer={server.tokenizer}"
        try:
            other = AutoTokenizer.from_pretrained(server.tokenizer, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: {error}. Expected the folder of a tokenizer") from None
        if not other.is_fast:
            raise InputError(f"{where}: it does not return the offsets of tokens; expected a fast tokenizer")
        others[part] = OtherTokenizer(other, tokenizer, is_chat)
    return others
