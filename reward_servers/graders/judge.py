"""Verdict of a chat model on each text by a rubric, from 0 to 1."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.scores import Sample
from reward_servers.chat_models.asked_model import AskedModel, Malformed, Two, answered
from reward_servers.text.templates import filled

QUESTION = """\
Judge an assistant's answer by the rubric.

=== The rubric
{rubric}

=== The prompt
{prompt}
{references}
=== The assistant's answer
{text}

=== Your judgement
Reply with a JSON object alone. Its "{key}" is a number from {lowest:g}, the worst, to {highest:g}, the best.\
{more}"""
REFERENCES = "\n=== {number} of {count} right answers\n{reference}\n"


class Judge(AskedModel):
    """A judge of single texts: it replies with a number on the scale, which becomes 0 to 1.

    It reads the answer without the thought. A text whose thought was cut off gets 0, and it is not asked.
    The rubric may hold `{prompt}`, `{text}` and keys of the meta data, such as `{solution}`.

    Example: `Judge(url="http://127.0.0.1:8001/v1", model="Qwen/Qwen3-4B", rubric="Is it polite?")`
    """

    scale: Two = (1.0, 10.0)  # the worst and the best number
    answer_schema: dict[str, Any] | None = None  # JSON schema of the reply; None: a reason and the number
    score_key: str = Field(default="score", min_length=1)  # the number's key in the reply
    with_references: bool = False  # show the references to the judge, too

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.scale[0] == self.scale[1]:
            raise ValueError(f"scale={list(self.scale)}: expected two different numbers, the worst first")
        if self.answer_schema is not None:
            from jsonschema import Draft202012Validator, SchemaError

            try:
                Draft202012Validator.check_schema(self.answer_schema)
            except SchemaError as error:
                raise ValueError(f"answer_schema is no JSON schema: {error.message}") from None
        return self

    async def score(self, samples: Sequence[Sample]) -> list[float]:
        return await asyncio.gather(*map(self._verdict, map(answered, samples)))

    async def _verdict(self, sample: Sample) -> float:
        if not sample.text:
            return 0.0
        return await self.verdict(self.question(sample), self.form(), self.value)

    def form(self) -> Mapping[str, Any]:
        """Return the JSON schema of a reply."""
        lowest, highest = sorted(self.scale)
        number = {"type": "number", "minimum": lowest, "maximum": highest}
        return self.answer_schema or {
            "type": "object",
            "properties": {"reason": {"type": "string"}, self.score_key: number},
            "required": ["reason", self.score_key],
            "additionalProperties": False,
        }

    def question(self, sample: Sample) -> str:
        count = len(sample.references)
        shown = [
            REFERENCES.format(number=number, count=count, reference=reference)
            for number, reference in enumerate(sample.references, start=1)
        ]
        return QUESTION.format(
            rubric=filled(self.rubric_text(), sample),
            prompt=sample.prompt,
            references="".join(shown) if self.with_references else "",
            text=sample.text,
            key=self.score_key,
            lowest=self.scale[0],
            highest=self.scale[1],
            more="" if self.answer_schema else ' Before it, "reason" says why in one sentence.',
        )

    def value(self, reply: Mapping[str, Any]) -> float:
        """Return the reply's number as 0 to 1.

        Raises:
            Malformed: there is none, or it is off the scale.
        """
        number, (worst, best) = reply.get(self.score_key), self.scale
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise Malformed(f'"{self.score_key}" is {number!r:.80}, which is no number')
        if not min(worst, best) <= number <= max(worst, best):
            raise Malformed(f'"{self.score_key}" is {number:g}; the scale is from {worst:g} to {best:g}')
        return (number - worst) / (best - worst)
