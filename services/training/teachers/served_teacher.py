"""Teacher on a vLLM server, which returns the log-probabilities of the tokens in a prompt."""

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from contracts.errors import InputError, RunError
from contracts.network.bounded_answers import MOST_BYTES, AnswerTooLong, answer_of
from learner.algorithms.distillation import RemoteTeacher
from reward_servers.chat_models.backoff import pause_s, retry_after_s
from reward_servers.chat_models.chat_model import OF_ONE_QUESTION, PASSING, SHOWN, ChatModel, NoReply, key_of

FIRST_WAIT_S = 0.5
EXPECTED = "expected a vLLM server, as `whetstone serve-model MODEL` starts one"
# Servers write -9999 for an impossible token. Clip such numbers, so that one token neither outweighs its
# batch nor ends the run.
LEAST_LOGPROB = -50.0
ENTRY_BYTES = 512  # bytes of one token's number in an answer, with its text
Place = dict[int, float]  # log-probabilities of tokens at one position, the most likely first


@dataclass(slots=True)
class ServedTeacher:
    """Server of a teacher with its options, and counts of its calls.

    Raises:
        InputError: the address is invalid, or the key's environment variable is not set.
    """

    settings: RemoteTeacher
    where: str = "algorithm.teacher"
    num_calls: int = 0
    num_repeated: int = 0
    _model: str | None = None
    _address: ChatModel = field(init=False)  # checks and shows the address, and holds the key

    def __post_init__(self) -> None:
        key = key_of(self.settings.key_variable, f"{self.where}.key_variable")
        self._address = ChatModel(self.settings.url.rstrip("/"), self.settings.model or "", key)
        self._address.check()

    @property
    def shown_url(self) -> str:
        return self._address.shown_url

    def client(self) -> httpx.AsyncClient:
        return self._address.client()

    async def places(self, client: httpx.AsyncClient, tokens: Sequence[int]) -> list[Place] | None:
        """Return the log-probabilities at each token after the first; None if the server rejects this text.

        Raises:
            RunError: the server did not answer within `patience_s`.
            InputError: the server rejects every text, or returns no log-probabilities of prompts.
        """
        ends, attempt = time.monotonic() + self.settings.patience_s, 0
        while True:
            attempt += 1
            self.num_calls += 1
            self.num_repeated += attempt > 1
            try:
                return await self._once(client, tokens)
            except NoReply as fault:
                pause = pause_s(attempt, fault.wanted_wait_s, FIRST_WAIT_S)
                if time.monotonic() + pause > ends:
                    raise RunError(
                        f"{self.where}.url={self.shown_url} did not answer for "
                        f"{self.settings.patience_s:g} s ({self.where}.patience_s), in {attempt} calls. Last "
                        f"error: {fault}. The same command continues from the newest checkpoint"
                    ) from None
                await asyncio.sleep(pause)

    async def _once(self, client: httpx.AsyncClient, tokens: Sequence[int]) -> list[Place] | None:
        body = {
            "model": self._model or await self._first_model(client),
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self.settings.top_k,
        }
        most_bytes = MOST_BYTES + len(tokens) * (self.settings.top_k + 1) * ENTRY_BYTES
        call = answer_of(client, "POST", f"{self._address.url}/completions", json=body, most_bytes=most_bytes)
        response = await self._call(call)
        if response.status_code in OF_ONE_QUESTION:
            if "prompt_logprobs" in response.text or "max_logprobs" in response.text:
                raise InputError(self._refusal(response))
            return None
        try:
            answers = response.json()["choices"][0]["prompt_logprobs"]
            places = [_place(place) for place in answers[1:]]
            if self._fit(places, tokens):
                return places
            reason = (
                "the answer's prompt_logprobs lack a token that was sent, or its most likely alternatives"
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            reason = "the answer has no prompt_logprobs"
        raise InputError(f"{self.where}.url={self.shown_url}: {reason}; {EXPECTED}")

    def _fit(self, places: Sequence[Place], tokens: Sequence[int]) -> bool:
        """Return whether each token after the first has a log-probability, and `top_k` alternatives."""
        count = self.settings.top_k
        return len(places) == len(tokens) - 1 and all(
            token in place and len(place) >= count and all(map(math.isfinite, place.values()))
            for token, place in zip(tokens[1:], places, strict=True)
        )

    async def _first_model(self, client: httpx.AsyncClient) -> str:
        """Return the model's name from the settings, or the first model that the server lists."""
        self._model = self.settings.model
        if self._model is None:
            response = await self._call(answer_of(client, "GET", f"{self._address.url}/models"))
            try:
                self._model = str(response.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise InputError(
                    f"{self.where}.url={self.shown_url} lists no model: expected an address up to "
                    f"/v1, or {self.where}.model=NAME"
                ) from None
        return self._model

    async def _call(self, call: Awaitable[httpx.Response]) -> httpx.Response:
        """Return the response to a call, if the server answered or rejected only this text.

        Raises:
            NoReply: no answer within `timeout_s`, or a temporary error.
            InputError: the server rejects every text.
        """
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                response = await call
        except TimeoutError:
            raise NoReply(f"no reply within {self.settings.timeout_s:g} s") from None
        except AnswerTooLong as error:
            raise InputError(f"{self.where}.url={self.shown_url}: {error}; {EXPECTED}") from None
        except httpx.HTTPError as error:
            raise NoReply(f"{type(error).__name__}: {self._address.safe(str(error))}") from None
        status = response.status_code
        if status in PASSING or status >= 500:
            raise NoReply(f"status {status}: {self._shown(response)}", retry_after_s(response.headers))
        if not response.is_success and status not in OF_ONE_QUESTION:
            raise InputError(self._refusal(response))
        return response

    def _refusal(self, response: httpx.Response) -> str:
        return (
            f"{self.where}.url={self.shown_url} rejects the request, status {response.status_code}: "
            f"{self._shown(response)}. Expected an address up to /v1, a model that is "
            "served there, and a top_k of at most its --max-logprobs"
        )

    def _shown(self, response: httpx.Response) -> str:
        """Return a server's message on one line. Mask it first, because half a key is not found."""
        return " ".join(self._address.safe(response.text).split())[:SHOWN]


def _place(answers: dict[str, Any]) -> Place:
    """Return the log-probabilities at one position, the most likely token first."""
    ranked = sorted(answers.items(), key=lambda item: (item[1].get("rank") or 0, int(item[0])))
    return {int(token): max(float(entry["logprob"]), LEAST_LOGPROB) for token, entry in ranked}
