"""One session of an Open Reward Standard server over HTTP: a task's prompt, tools and calls, with deadlines.

    POST /create_session                    ─▶ events: the session's id
    POST /create  {"split": …, "index": 3}  ─▶ the task is set up
    GET  /NAME/task_tools, /NAME/prompt     ─▶ {"tools": […], "terminal_tool": …}, [{"type": "text", …}]
    POST /NAME/call {"name": …, "input": …} ─▶ events: task_id, chunk, …, end: {"ok": true, "output":
    POST /delete, /delete_session                {"blocks": […], "reward": 0.5, "finished": false}}

Requests name the session in X-Session-ID. A call whose stream breaks is resumed by its task_id, never
repeated.
Source: `ors/{server,_reconnect,types}.py` of ors-sdk 0.1.0, `openreward/environments/` of openreward 0.1.167.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import httpx

from contracts.errors import EpisodeError, InputError
from contracts.network.bounded_answers import AnswerTooLong, answer_of, read_whole
from rollout_workers.tools.calling import Result
from rollout_workers.tools.env_servers import is_near
from rollout_workers.tools.event_stream import events
from rollout_workers.tools.open_reward_answers import Opening, json_of, opening_of, result_of

Value = TypeVar("Value")
KEY, SESSION, TASK_ID = "X-API-Key", "X-Session-ID", "task_id"
BUSY = (429, 503)  # the server has not done anything yet
MISTAKES = (400, 401, 403)  # the user's: a wrong split, task or key
RETRY_S, MOST_BREAKS = 0.5, 3
PING_S = 10.0  # servers end silent sessions: after 15 minutes, or after two
END_S = 5.0
EXCERPT = 300  # characters of an error in a message


class _Missing(EpisodeError):
    """The server lacks this page, or no longer has this session."""


class Session:
    """Session of successive tasks; a thread makes the requests.

    Args:
        name: name of the server's environment.
        headers: headers of every request, such as a key.
    """

    def __init__(self, url: str, name: str, headers: Mapping[str, str]) -> None:
        self._url, self._name, self._headers = url, name, dict(headers)
        self._client = httpx.AsyncClient(base_url=url, timeout=None, trust_env=not is_near(url))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="open-reward", daemon=True)
        self._thread.start()
        self._id: str | None = None
        self._ping: Future[None] | None = None
        self._ending: list[Future[None]] = []
        self._hindrance = ""

    def begin(self, task: Mapping[str, Any], limit_s: float, limit: str) -> Opening:
        """End the last task and begin the task of `split` and `index`; ask a busy server again.

        Args:
            limit: name of the setting to raise for more seconds.

        Raises:
            InputError: the task does not exist.
            EpisodeError: the server can't be reached, fails, or gives no answer in time.
        """
        self.end()
        opening = self._within(self._begun(task), limit_s, "reset", limit)
        self._ping = self._soon(self._pinged())
        return opening

    def call(self, name: str, arguments: Mapping[str, Any], limit_s: float, limit: str) -> Result:
        """
        Raises:
            ToolError: the server refuses the call; the model reads the message.
            EpisodeError: the tool raised, or the server fails, died, or gives no answer in time.
        """
        return self._within(self._called(name, arguments), limit_s, f"a call of {name}", limit)

    def end(self, wait_s: float = 0.0) -> None:
        """Let the server end the task, and wait at most `wait_s` for it."""
        if self._ping is not None:
            self._ping.cancel()
        if self._id is not None:
            self._ending = [future for future in self._ending if not future.done()]
            self._ending.append(self._soon(self._ended(self._id)))
        self._id = self._ping = None
        wait(self._ending, timeout=wait_s)

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self.end(END_S)
        with contextlib.suppress(Exception):  # the connection may be gone already
            self._soon(self._client.aclose()).result(END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _within(self, work: Coroutine[Any, Any, Value], seconds: float, what: str, limit: str) -> Value:
        """Wait for an answer; end a failed session within a twentieth of the time."""
        self._hindrance = ""
        try:
            return self._soon(asyncio.wait_for(work, seconds)).result()
        except TimeoutError:
            hindrance = self._hindrance and f" ({self._hindrance})"
            reason = f"no answer to {what} in {seconds:.3g} s{hindrance}; raise environment.{limit}"
        except AnswerTooLong as error:
            reason = f"{what} failed: {error}; expected shorter answers of the environment"
        except (httpx.HTTPError, ValueError) as error:
            reason = f"{what} failed, because the connection failed: {_named(error)}"
        except (EpisodeError, InputError) as error:
            self.end(seconds / 20)
            kind = InputError if isinstance(error, InputError) else EpisodeError
            raise kind(f"environment.url={self._url}: {what} {error}") from None
        self.end(seconds / 20)
        raise EpisodeError(f"environment.url={self._url}: {reason}")

    def _soon(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _begun(self, task: Mapping[str, Any]) -> Opening:
        self._id = await self._opened()
        await self._asked("POST", "/create", {"env_name": self._name, **task})
        try:
            tools = await self._asked("GET", f"/{self._name}/task_tools")
        except _Missing:  # on an older server
            tools = await self._asked("GET", f"/{self._name}/tools")
        return opening_of(await self._asked("GET", f"/{self._name}/prompt"), tools)

    async def _opened(self) -> str:
        """Return a new session's id; ask a restarting server again."""
        while True:
            try:
                text, task_id = await self._streamed("/create_session", {})
                break
            except httpx.ConnectError as error:
                await self._pause(_named(error))
        answer = json_of(text) if text else {}
        name = answer.get("sid", task_id) if isinstance(answer, Mapping) else None
        if not isinstance(name, str) or not name:
            raise EpisodeError(f"was answered by {text!r:.200}; expected a session's id")
        return name

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> Result:
        body = {"name": name, "input": dict(arguments)}
        try:
            text, _ = await self._streamed(f"/{self._name}/call", body)
        except InputError as error:  # a model's text ends no run
            raise EpisodeError(str(error)) from None
        return result_of(text)

    async def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of an answer."""
        while True:
            answer = await answer_of(self._client, method, path, json=body, headers=self._headed())
            if answer.status_code not in BUSY:
                break
            await self._pause(_shown(answer))
        _check(answer)
        return json_of(answer.text)

    async def _streamed(self, path: str, body: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the text of a stream of events, and its task_id, which resumes a broken stream."""
        stream, breaks = _Stream(), 0
        while True:
            payload = body if stream.task_id is None else {**body, TASK_ID: stream.task_id}
            try:
                async with self._client.stream("POST", path, json=payload, headers=self._headed()) as answer:
                    if answer.status_code not in BUSY:
                        return await stream.read(answer), stream.task_id
                    answer = await read_whole(answer)
            except httpx.TransportError as error:
                breaks += 1
                if stream.task_id is None or breaks > MOST_BREAKS:
                    raise
                await self._pause(_named(error), RETRY_S * breaks)
            else:
                await self._pause(_shown(answer))

    async def _pause(self, reason: str, seconds: float = RETRY_S) -> None:
        self._hindrance = reason
        await asyncio.sleep(seconds)

    async def _pinged(self) -> None:
        """Tell the server regularly that the session is in use, because a model may write for a long time."""
        while True:
            await asyncio.sleep(PING_S)
            with contextlib.suppress(httpx.HTTPError, AnswerTooLong):
                await answer_of(self._client, "POST", "/ping", headers=self._headed(), timeout=PING_S)

    async def _ended(self, name: str) -> None:
        for path in ("/delete", "/delete_session"):
            with contextlib.suppress(httpx.HTTPError, AnswerTooLong):
                await answer_of(self._client, "POST", path, headers=self._headed(name), timeout=END_S)

    def _headed(self, name: str | None = None) -> dict[str, str]:
        session = name or self._id
        return {**self._headers, SESSION: session} if session else self._headers


class _Stream:
    """Stream of one operation; the server may send it again."""

    def __init__(self) -> None:
        self.task_id: str | None = None

    async def read(self, answer: httpx.Response) -> str:
        """
        Raises:
            TransportError: the stream broke.
            EpisodeError: the operation failed, or the answer is no stream.
        """
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            answer = await read_whole(answer)
            _check(answer)
            raise EpisodeError(f"was answered by {answer.text!r:.200}; expected a stream of events")
        chunks: list[str] = []
        async for kind, data in events(answer.aiter_bytes()):
            if kind == TASK_ID:
                self.task_id = data.strip()
            elif kind == "error":
                raise EpisodeError(f"failed on the server: {data:.{EXCERPT}}")
            elif kind in ("chunk", "end"):
                chunks.append(data)
            if kind == "end":
                return "".join(chunks)
        raise httpx.RemoteProtocolError("the stream broke off")


def _check(answer: httpx.Response) -> None:
    """
    Raises:
        InputError: the request names something missing or forbidden.
        EpisodeError: the request failed for another reason.
    """
    if answer.status_code in MISTAKES:
        raise InputError(f"was refused: {_shown(answer)}")
    if not answer.is_success:
        raise (_Missing if answer.status_code == 404 else EpisodeError)(f"failed: {_shown(answer)}")


def _shown(answer: httpx.Response) -> str:
    """Return status and reason of an error."""
    try:
        reason = answer.json()["detail"]
    except (ValueError, LookupError, TypeError):
        reason = answer.text
    return f"{answer.status_code} {reason!s:.{EXCERPT}}"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
