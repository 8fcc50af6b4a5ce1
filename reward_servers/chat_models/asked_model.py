"""Options of a chat model that scores texts, and its replies: JSON of a given form.

    question ─▶ chat model ─▶ reply ─▶ JSON that fits? ─▶ verdict
        ▲                                   │ no: name the fault, at most `asks` questions in all
        └───────────────────────────────────┘

The reward's server repeats a question after a passing fault (`reward_servers/user_rewards/coroutines.py`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
from pydantic import BeforeValidator, Field, PrivateAttr

from contracts.conversations.thoughts import behind_thought
from contracts.errors import InputError, RewardError
from contracts.processes.working_folder import working_folder
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.chat_models.chat_model import ChatModel, NoReply, OptionNames, Refused, Reply, key_of

RUBRIC_FILES = (".md", ".txt")
SHOWN = 200  # characters of a reply in a message
PER = 1_000_000  # number of tokens that a price covers
OPTIONS = OptionNames("reward's url", "model", "key_variable")

Verdict = TypeVar("Verdict")


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# YAML has lists, frozen settings hold tuples.
Two = Annotated[tuple[float, float], BeforeValidator(_list_to_tuple)]


class Malformed(ValueError):
    """Reply that lacks the requested form."""


class AskedModel(Settings):
    """A chat model at an OpenAI-style address. Its key comes from the environment, and is shown nowhere."""

    url: str = Field(min_length=1)  # up to /v1
    model: str = Field(min_length=1)  # its name at that address
    key_variable: str | None = None  # the environment variable with the key; None: no key
    rubric: str = Field(default="A good answer is helpful, correct and clear.", min_length=1)  # or a .md file
    asks: int = Field(default=3, ge=1)  # questions about a text, until a reply has the form that it should
    prices: Two | None = None  # prices of a million tokens, read and written: counted as `cost`
    structured: bool = True  # send the form as response_format; false for servers that do not know it
    body: dict[str, Any] = Field(default_factory=dict)  # further keys of each request; null leaves one out

    _counts: dict[str, float] = PrivateAttr(default_factory=dict)
    _client: httpx.AsyncClient | None = PrivateAttr(default=None)
    _key: str | None = PrivateAttr(default=None)

    @property
    def counts(self) -> dict[str, float]:
        """Return the counts: requests, tokens, cost, faults of the server, malformed replies."""
        return self._counts

    def check(self) -> None:
        """Refuse an invalid address, a missing key and an unreadable rubric file."""
        self._chat_model({}).check()
        self.rubric_text()

    def load(self) -> None:
        self.check()

    def rubric_text(self) -> str:
        """Return the rubric, or the text of the file that it names."""
        if "\n" in self.rubric or not self.rubric.endswith(RUBRIC_FILES):
            return self.rubric
        try:
            return Path(working_folder() or "", self.rubric).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"rubric={self.rubric}: can't be read as UTF-8 text: {error}") from None

    async def verdict(
        self, question: str, form: Mapping[str, Any], read: Callable[[dict[str, Any]], Verdict]
    ) -> Verdict:
        """Ask until a reply has the form, and return the result of `read`.

        Args:
            form: the JSON schema of the reply.
            read: raises Malformed for a wrong reply that fits the schema.

        Raises:
            RewardError: no reply had the form, or the server refuses this question.
            InputError: the server refuses any question.
            NoReply: the server is busy, or gave no reply.
        """
        model, texts = self._chat_model(form), [question]
        for _ in range(self.asks):
            reply = await self._asked(model, *texts)
            try:
                return read(as_json(reply.text, form))
            except Malformed as error:
                self._count("malformed", 1)
                wrong = error
            again = f"This was not as asked for: {wrong}. Reply again, with the JSON object alone."
            texts = [question, reply.text or "…", again]
        shown = " ".join(reply.text.split())[:SHOWN]
        raise RewardError(f"none of {self.asks} replies was as asked for; the last, {shown!r}: {wrong}")

    async def _asked(self, model: ChatModel, *texts: str) -> Reply:
        self._client = self._client or model.client()
        self._count("requests", 1)
        try:
            reply = await model.once(self._client, *texts)
        except Refused as error:
            raise RewardError(str(error)) from None
        except NoReply:
            self._count("faults", 1)
            raise
        self._count("tokens", reply.prompt_tokens + reply.completion_tokens)
        if self.prices is not None:
            read, written = self.prices
            self._count("cost", (reply.prompt_tokens * read + reply.completion_tokens * written) / PER)
        return reply

    def _count(self, name: str, more: float) -> None:
        self._counts[name] = self._counts.get(name, 0.0) + more

    def _chat_model(self, form: Mapping[str, Any]) -> ChatModel:
        self._key = self._key or key_of(self.key_variable, "key_variable")
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "verdict", "schema": form, "strict": True},
        }
        body = {
            "temperature": 0,
            "response_format": response_format if self.structured else None,
            **self.body,
        }
        return ChatModel(self.url, self.model, self._key, body, timeout_s=None, options=OPTIONS)


def answered(sample: Sample) -> Sample:
    """Return the sample for a judge, without the thought; "" if the thought was truncated.

    >>> answered(Sample("<think>7?</think> It is 8.")).text, answered(Sample("<think>7?")).text
    ('It is 8.', '')
    """
    answer = behind_thought(sample.response)
    return sample if answer == sample.text else replace(sample, text=(answer or "").strip(), opened="")


def as_json(reply: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last JSON object in a reply, among words or thoughts.

    >>> as_json('<think>{…}</think> ```json\\n{"score": 3}\\n```', {"required": ["score"]})
    {'score': 3}

    Raises:
        Malformed: there is none, or it does not fit the schema.
    """
    from jsonschema import Draft202012Validator  # takes a while to import

    json_object = _last_object(reply)
    if json_object is None:
        raise Malformed("it has no JSON object")
    problem = next(iter(Draft202012Validator(dict(form)).iter_errors(json_object)), None)
    if problem is not None:
        where = "".join(f" of {place!r}" for place in problem.absolute_path)
        raise Malformed(f"the value{where} does not fit: {problem.message[:SHOWN]}")
    return json_object


def _last_object(text: str) -> dict[str, Any] | None:
    """Return the last outermost JSON object of a text."""
    decoder, last, at = json.JSONDecoder(parse_constant=_refuse), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        last = value
    return last


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
