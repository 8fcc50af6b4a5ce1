"""Base of the tasks whose rows hold responses: it sorts them by prompt and skips useless ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.tasks.base import Split
from services.tasks.data_set import DataSetTask
from services.tasks.responses import ResponseRow

EMPTY = "an empty prompt or response"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response of a row."""

    text: str
    is_good: bool = True
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """Prompt with its responses, the best first, or the reason why it is left out.

    Example: `Answered(Prompt("", "Is it far?"), (Answer("Yes."), Answer("Ask me not:", is_good=False)))`
    """

    prompt: Prompt  # without references: the good responses serve as such
    responses: tuple[Answer, ...]
    left_out: str = ""


class ResponseTask(DataSetTask):
    """Task over a data set whose rows hold responses; a subclass defines `answered`, which reads a row."""

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
            replace(one.prompt, references=tuple(each.text for each in one.responses if each.is_good))
            for one in self.answered(split, fields, where)
            if not self._reason(one)
        ]

    def rows(self, split: Split) -> Any:
        if self.data_files is None and not self.path:
            raise InputError(
                f"task={self.task_name} reads files of your own ({self.source}): task.data_files=…"
            )
        return super().rows(split)

    def responses(self, split: Split) -> list[ResponseRow]:
        """Return the responses of all prompts of `prompts(split)`, in that order."""
        groups: dict[Any, tuple[Prompt, list[Answer]]] = {}
        together = self.puts_together(split)
        for row, fields in enumerate(self.rows(split)):
            found = self.answered(split, fields, self._where(split, row))
            kept = [one for one in found if not self._reason(one)]
            for one, prompt in zip(kept, self._numbered(split, row, fields), strict=True):
                key = prompt.text if together else prompt.id
                before, responses = groups.get(key, (None, []))
                if before is not None:
                    prompt = replace(before, references=before.references + prompt.references)
                groups[key] = (prompt, [*responses, *one.responses])
        taken = list(groups.values())[: self.size(split, len(groups))]
        return [
            ResponseRow(prompt, each.text, group, each.is_good, order, each.scores)
            for group, (prompt, responses) in enumerate(taken)
            for order, each in enumerate(responses)
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
        texts = (one.prompt.text, *(each.text for each in one.responses))
        if not one.left_out and self.skip_empty and not all(text.strip() for text in texts):
            return EMPTY
        return one.left_out
