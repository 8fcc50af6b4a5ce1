"""Base of the tasks whose rows hold responses. It groups them by prompt and skips useless ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.responses import ResponseRow

EMPTY = "an empty prompt or response"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response of a row."""

    text: str
    is_good: bool = True
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """Prompt with its responses, the best first, and the reason to leave it out, if any.

    Example: `Answered(Prompt("", "Is it far?"), (Answer("Yes."), Answer("Ask me not:", is_good=False)))`
    """

    prompt: Prompt  # prompt without references, because good responses serve as these
    responses: tuple[Answer, ...]
    left_out: str = ""


class ResponseTask(DataSetTask):
    """Task over a data set whose rows hold responses. A subclass defines `answered`, which reads a row."""

    one_each: ClassVar[bool] = False
    default_reward: ClassVar[str | None] = None
    source: ClassVar[str] = ""  # where to get the data, if it is not on the hub

    skip_empty: bool = True

    def answered(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Answered]:
        """Return the prompts and responses of one row; ids as in `of_row`.

        Raises:
            InputError: a column is missing or holds a wrong value; the message begins with `where`.
        """
        raise NotImplementedError

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        return [
            replace(
                one.prompt, references=tuple(response.text for response in one.responses if response.is_good)
            )
            for one in self.answered(split, fields, where)
            if not self._reason(one)
        ]

    def rows(self, split: Split) -> Any:
        if self.data_files is None and not self.path:
            raise InputError(f"task={self.task_name} reads your files ({self.source}): task.data_files=…")
        return super().rows(split)

    def responses(self, split: Split) -> list[ResponseRow]:
        """Return the responses to all prompts in `prompts(split)`, in the same order."""
        groups: dict[Any, tuple[Prompt, list[Answer]]] = {}
        together = self.puts_together(split)
        for row, fields in enumerate(self.rows(split)):
            candidates = self.answered(split, fields, self._where(split, row))
            kept = [one for one in candidates if not self._reason(one)]
            for one, prompt in zip(kept, self._numbered(split, row, fields), strict=True):
                key = prompt.text if together else prompt.id
                before, responses = groups.get(key, (None, []))
                if before is not None:
                    prompt = replace(before, references=before.references + prompt.references)
                groups[key] = (prompt, [*responses, *one.responses])
        taken = list(groups.values())[: self.size(split, len(groups))]
        return [
            ResponseRow(prompt, response.text, group, response.is_good, order, response.scores)
            for group, (prompt, responses) in enumerate(taken)
            for order, response in enumerate(responses)
        ]

    def left_out(self, split: Split) -> Counter[str]:
        """Count the prompts of the data that `prompts(split)` leaves out, by reason."""
        return Counter(
            reason
            for row, fields in enumerate(self.rows(split))
            for one in self.answered(split, fields, self._where(split, row))
            if (reason := self._reason(one))
        )

    def _reason(self, one: Answered) -> str:
        texts = (one.prompt.text, *(response.text for response in one.responses))
        if not one.left_out and self.skip_empty and not all(text.strip() for text in texts):
            return EMPTY
        return one.left_out
