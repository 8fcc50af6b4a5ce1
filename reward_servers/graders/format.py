"""Score of 1 if the text has the required form: a pattern, XML tags in order, JSON of a schema; else 0."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, field_validator, model_validator

from contracts.conversations.thoughts import opening_mark
from contracts.processes.working_folder import working_folder
from contracts.scores import Sample
from contracts.settings import Settings, Strings
from reward_servers.isolation.confined import Confined
from reward_servers.isolation.limits import Limits


class Format(Settings):
    """Rules for a text's form, each in a process that ends a pattern which never would.

    With `partial` the score is the share of rules kept. A text that takes too long keeps none. Where a chat
    template opens the thought, texts begin inside of it and need no `<think>`. Texts of unknown origin may.

    Example: `Format(tags=("think", "answer")).score([Sample("<think>2 + 2</think><answer>4</answer>")])
    == [1.0]`
    """

    requires: ClassVar[tuple[str, ...]] = ("jsonschema",)
    deterministic: ClassVar[bool] = False  # a time-out's 0 may be the machine's fault, so it is not cached

    pattern: str | None = None  # a regular expression for the whole text; a dot is also a line's end
    tags: Strings = ()  # each once, closed, in this order: [think, answer]
    nothing_else: bool = False  # no text outside of the tags
    json_schema: str | dict[str, Any] | None = None  # a JSON schema, or the file of one
    json_tag: str | None = None  # the JSON stands between these tags; None: it is the whole text
    partial: bool = False
    limits: Limits = Field(default=Limits(seconds=2.0))
    _confined: Confined = PrivateAttr()
    _schema: Any = PrivateAttr()

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _has_rules(self) -> "Format":
        if self.pattern is None and not self.tags and self.json_schema is None:
            raise ValueError("expected a pattern, tags or a json_schema: reward.tags=[think,answer]")
        self._schema = _schema_of(self.json_schema)
        self._confined = Confined("reward_servers.verifiers.format", self.limits)
        return self

    def score(self, samples: Sequence[Sample]) -> list[float]:
        rules = {
            "pattern": self.pattern,
            "tags": list(self.tags),
            "nothing_else": self.nothing_else,
            "schema": self._schema,
            "json_tag": self.json_tag,
        }
        outcomes = self._confined.run([[{"texts": self._texts(sample)} | rules] for sample in samples])
        return [self._score(outcome.value or [False]) for (outcome,) in outcomes]

    def _texts(self, sample: Sample) -> list[str]:
        """Return the text; with the thought's opening mark, too, if the prompt had or may have had it."""
        response, tag = sample.response, self.tags[0] if self.tags else ""
        may_be_opened = sample.opened is None and opening_mark(f"<{tag}>") is not None
        if may_be_opened and f"<{tag}>" not in response:
            response = f"<{tag}>{response}"
        return list(dict.fromkeys([sample.text, response]))

    def _score(self, kept: Sequence[bool]) -> float:
        return sum(kept) / len(kept) if self.partial else float(all(kept))


def _schema_of(schema: str | Mapping[str, Any] | None) -> Any:
    if schema is None:
        return None
    where = "json_schema"
    if isinstance(schema, str):
        path = Path(working_folder() or "", schema)
        try:
            where, schema = f"json_schema={schema}", json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{where}: {path} can't be read as JSON: {error}") from None
    import jsonschema

    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"{where}: no JSON schema: {error.message}") from None
    return schema
