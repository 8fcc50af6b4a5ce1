"""Chat models behind an OpenAI-style address: one question, one reply, within a deadline.

`whetstone judge` and the rewards `judge` and `judge_group` use them.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from contracts.errors import InputError
from contracts.network.bounded_answers import AnswerTooLong, answer_of
from contracts.secrets.redaction import redact
from contracts.secrets.secret_values import HIDDEN, remember_secret
from reward_servers.chat_models.backoff import FIRST_WAIT_S, pause_s, retry_after_s

PASSING = (408, 409, 425, 429)  # statuses that are asked again, as all 5xx are
OF_ONE_QUESTION = (400, 413, 422)  # such as one that is longer than the model's window
NO_FORM = ". For a server that knows no response_format, set structured=false"
SHOWN = 300  # characters of a server's message
ROLES = ("user", "assistant")


class Unanswered(Exception):
    """Question without a reply at any attempt."""


class Refused(Unanswered):
    """Question that the server refused, or answered too long; it may answer others."""


class NoReply(Exception):
    """Fault that may pass by the next attempt, perhaps only after the server's requested pause."""

    def __init__(self, reason: str, wanted_wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wanted_wait_s = wanted_wait_s


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to a question, with the tokens that the server counted.

    Example: `Reply("More helpful: A", prompt_tokens=812, completion_tokens=5)`
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OptionNames:
    """A chat model's option names, for messages."""

    url: str = "--url"
    name: str = "--model"
    key: str = "--key-variable"


@dataclass(frozen=True, slots=True)
class ChatModel:
    """Chat model at an address. Its key leaves this class only in the request's header.

    Example: `ChatModel("http://127.0.0.1:8000/v1", "judge", body={"max_tokens": 200})`
    """

    url: str  # up to /v1
    name: str
    key: str | None = field(default=None, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict)  # further keys of the request
    timeout_s: float | None = 60.0  # limit from a question to the end of its reply; None: the caller's
    attempts: int = 4
    first_wait_s: float = FIRST_WAIT_S  # wait after the first failure; doubled after each further one
    options: OptionNames = OptionNames()

    @property
    def shown_url(self) -> str:
        """Return the address without its user name and password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))

    def check(self) -> None:
        """Check address and key.

        Raises:
            InputError: the address is invalid, or the key has characters that a header can't hold.
        """
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InputError(
                f"{self.options.url} {self.shown_url}: expected an address such as http://127.0.0.1:8000/v1"
            )
        # An error about the header would show the key escaped, and so unmasked.
        if self.key is not None and not re.fullmatch(r"[!-~]+", self.key):
            raise InputError(
                f"{self.options.key}: the key (not shown) contains a blank or a character that is not ASCII. "
                "Expected the service's key on one line"
            )

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # A redirect would carry the key to another host.
        return httpx.AsyncClient(headers=headers, timeout=None, follow_redirects=False)

    def request(self, *texts: str) -> dict[str, Any]:
        """Return the request's body, without the options that are null in `body`.

        Args:
            texts: the question; then, in turn, replies and answers to them.
        """
        messages = [{"role": ROLES[place % 2], "content": text} for place, text in enumerate(texts)]
        whole = {"model": self.name, "messages": messages, **self.body}
        return {key: value for key, value in whole.items() if value is not None}

    async def reply(self, client: httpx.AsyncClient, text: str) -> str:
        """Ask one question and return the reply.

        Raises:
            Unanswered: no reply within the deadline, or a passing fault, at every attempt.
            Refused: the server refuses this question, for example because it is too long.
            InputError: the server refuses every question: another address, name or key is needed.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return (await self.once(client, text)).text
            except NoReply as fault:
                if attempt == self.attempts:
                    raise Unanswered(f"{self.shown_url} in {attempt} attempts, the last: {fault}") from None
                await asyncio.sleep(pause_s(attempt, fault.wanted_wait_s, self.first_wait_s))
        raise AssertionError("at least one attempt is made")

    async def once(self, client: httpx.AsyncClient, *texts: str) -> Reply:
        """Ask once, and return the reply.

        Args:
            texts: as in `request`.

        Raises:
            NoReply: no reply within the deadline, or a fault that may pass.
            Refused, InputError: as in `reply`.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                address = f"{self.url.rstrip('/')}/chat/completions"
                response = await answer_of(client, "POST", address, json=self.request(*texts))
        except TimeoutError:
            raise NoReply(f"no reply within {self.timeout_s:g} s") from None
        except AnswerTooLong as error:
            raise Refused(f"{self.shown_url}: {error}. Expected a chat model's reply") from None
        except httpx.HTTPError as error:
            raise NoReply(f"{type(error).__name__}: {self.safe(str(error))}") from None
        # Mask before cutting: half a key would not be found.
        status, message = response.status_code, self.safe(_message(response))[:SHOWN]
        if response.is_success:
            if (content := _content(response)) is None:
                raise NoReply(f"no chat model's reply (is the URL one up to /v1?): {message}")
            return Reply(content, *_usage(response))
        if status in PASSING or status >= 500:
            raise NoReply(f"status {status}: {message}", retry_after_s(response.headers))
        if status in OF_ONE_QUESTION:
            hint = NO_FORM if "response_format" in message else ""
            raise Refused(f"{self.shown_url}: status {status}: {message}{hint}")
        raise InputError(f"{self.shown_url} refuses, status {status}: {message}. {self._remedy(status)}")

    def _remedy(self, status: int) -> str:
        if status in (401, 403):
            return (
                "Expected the name of an environment variable with a key that is accepted: "
                f"{self.options.key}"
            )
        return (
            "Expected a base URL up to /v1, and a model that is served there; got "
            f"{self.options.name} {self.name}"
        )

    def safe(self, text: str) -> str:
        """Mask the key and the address in a server's message, because servers repeat refused keys."""
        text = text.replace(self.url, self.shown_url)
        return redact(text.replace(self.key, HIDDEN) if self.key else text)  # short keys too


def key_of(variable: str | None, option: str) -> str | None:
    """Return the key in an environment variable, and remember it as a secret; None without a variable.

    Raises:
        InputError: the variable is not set.
    """
    # A key from a file ends in a line break.
    key = os.environ.get(variable or "", "").strip() or None
    if variable and not key:
        raise InputError(f"{option} {variable}: this environment variable is not set")
    remember_secret(key)
    return key


def _content(response: httpx.Response) -> str | None:
    """Return the reply's text; None if the response is not a chat model's."""
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return None
    return content if isinstance(content, str) else ""  # null where reasoning used all tokens


def _usage(response: httpx.Response) -> tuple[int, int]:
    """Return the tokens of the question and of the reply; 0 if unknown."""
    usage = response.json().get("usage")
    counts = [
        usage.get(key) if isinstance(usage, dict) else 0 for key in ("prompt_tokens", "completion_tokens")
    ]
    prompt, completion = (count if isinstance(count, int) else 0 for count in counts)
    return prompt, completion


def _message(response: httpx.Response) -> str:
    try:
        body = json.loads(response.text)
        error = body.get("error", body) if isinstance(body, dict) else body
        message = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        message = response.text
    return " ".join(str(message).split())
