"""Send malformed requests to a running server, and check its answers and its survival.

A long run from the command line, against a server of `whetstone serve-model`:

    python -m tests.fuzz http://127.0.0.1:8020 tiny 5000
"""

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

INTEGERS = st.integers() | st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**300])
NUMBERS = INTEGERS | st.floats()
TEXTS = st.text(max_size=20) | st.sampled_from(["", "\0", "\ufeff", "a" * 5000, "\U0001f600"])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TOKENS = st.lists(st.integers(0, 300), max_size=5)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "king"]), "content": TEXTS | JSON},
    optional={"name": TEXTS, "tool_calls": JSON, "tool_call_id": TEXTS},
)
TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXTS}, optional={"parameters": JSON}),
    }
)
SHORT = st.integers(1, 4)  # tokens: a fuzz is no benchmark
TINY = st.sampled_from([5e-324, 1e-300, 1e-45, 1e-40, 1e-38, 1e-7, 1e-3])  # what float32 rounds to 0 and more
SHARED: Mapping[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2) | TINY,
    "top_p": st.floats(0.01, 1) | TINY,
    "top_k": st.integers(-1, 300),
    "n": st.integers(1, 3),
    "seed": INTEGERS,
    "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "min_tokens": st.integers(0, 4),
    "repetition_penalty": st.floats(0.5, 2) | TINY,
    "presence_penalty": st.floats(-2, 2) | TINY,
    "frequency_penalty": st.floats(-2, 2) | TINY,
    "logit_bias": st.dictionaries(st.integers(0, 400).map(str), st.floats(-100, 100), max_size=3),
    "user": TEXTS,
    "ignore_eos": st.booleans(),
    "stop_token_ids": TOKENS,
    "bad_words": st.lists(TEXTS, max_size=2),
    "allowed_token_ids": TOKENS,
    "truncate_prompt_tokens": INTEGERS,
    "prompt_logprobs": st.integers(-2, 30),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema"])}
    ),
    "structured_outputs": st.fixed_dictionaries(
        {}, optional={"regex": TEXTS, "choice": st.lists(TEXTS), "json": JSON}
    ),
}
COMPLETION = SHARED | {
    "prompt": TEXTS | TOKENS | st.lists(TEXTS, max_size=3) | st.lists(TOKENS, max_size=3),
    "max_tokens": SHORT,
    "echo": st.booleans(),
    "logprobs": st.integers(0, 30),
    "best_of": st.integers(0, 3),
    "suffix": TEXTS,
}
CHAT = SHARED | {
    "messages": st.lists(MESSAGE, max_size=4),
    "max_completion_tokens": SHORT,
    "max_tokens": SHORT,
    "tools": st.lists(TOOL, max_size=2),
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | JSON,
    "parallel_tool_calls": st.booleans(),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 30),
}
CALLS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
TOKENIZING = {
    "/tokenize": {"prompt": TEXTS, "messages": st.lists(MESSAGE), "add_special_tokens": st.booleans()}
}
TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS})
CHATTING = {
    "/api/answer": {"messages": st.lists(TURN, min_size=1, max_size=4) | st.lists(MESSAGE, max_size=3)}
}
NEEDED = {
    "/api/answer": "messages",
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/tokenize": "prompt",
}

STREAMS = ("text/event-stream", "application/x-ndjson", "text/html")  # answers that are no one JSON

RAW = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"prompt"',
    "no JSON": b'{"prompt":',
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a BOM": b'\xef\xbb\xbf{"prompt": "a"}',
    "half a surrogate pair": b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
    "NUL": b'{"prompt": "\\u0000", "max_tokens": 2}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": 1e999}',
    "5,000 digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "deep lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a key twice": b'{"prompt": "a", "prompt": 5}',
    "9 MiB": b'{"prompt": "' + b"x" * (9 * 2**20) + b'"}',
    "7 MiB": b'{"prompt": "' + b"x " * (7 * 2**19) + b'", "max_tokens": 1}',
    "100,000 prompts": b'{"prompt": [' + b'"a",' * 99_999 + b'"a"], "max_tokens": 1}',
    "100,000 keys": b"{" + b",".join(b'"k%d": 1' % number for number in range(100_000)) + b"}",
}
HEADS = {
    "another Host": (b"Host: evil.example", 400),
    "a user in Host": (b"Host: 127.0.0.1:1@evil.example", 400),
    "no Host": (b"X: y", 400),
    "another Origin": (b"Host: 127.0.0.1\r\nOrigin: http://evil.example", 403),
    "no Origin's name": (b"Host: 127.0.0.1\r\nOrigin: null", 403),
}


@dataclass
class Target:
    """A running server, and one request that it answers with 200."""

    root: str
    good: tuple[str, Any]  # path, body
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    is_openai: bool = True
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, int]:
        where = urlsplit(self.root)
        return str(where.hostname), int(where.port or 0)

    def check(self, label: str, answer: httpx.Response) -> None:
        """Count an answer, and note one that is a server's fault or of the wrong form."""
        self.statuses[answer.status_code] += 1
        reason = _fault(answer, self.is_openai)
        if reason:
            self.wrong.append(f"{label}: {answer.status_code}, {reason}: {answer.text[:200]}")

    def post(self, client: httpx.Client, path: str, body: bytes, label: str) -> None:
        kind = {"content-type": "application/json", **self.headers}
        try:
            self.check(label, client.post(f"{self.root}{path}", content=body, headers=kind))
        except httpx.HTTPError as error:
            if len(body) <= 8 * 2**20:  # one that is too large may be cut off
                self.wrong.append(f"{label}: {type(error).__name__}: {error}")

    def lives(self) -> bool:
        """Return whether the server answers a good request."""
        path, body = self.good
        answer = httpx.post(f"{self.root}{path}", json=body, headers=dict(self.headers), timeout=120)
        self.check("a good request", answer)
        return answer.status_code == 200


def _fault(answer: httpx.Response, is_openai: bool) -> str:
    if answer.status_code >= 500:
        return "a server's fault"
    if answer.headers.get("content-type", "").startswith(STREAMS):
        return ""
    try:
        body = answer.json()
    except ValueError:
        return "" if answer.text == "Invalid HTTP request received." else "no JSON"  # uvicorn's, below HTTP
    if answer.status_code < 400:
        return ""
    if not is_openai:
        return "" if "detail" in body else "no detail"
    error = body.get("error")
    return (
        "" if isinstance(error, dict) and {"message", "type", "param", "code"} <= error.keys() else "no error"
    )


def bodies(fields: Mapping[str, st.SearchStrategy[Any]], needed: str, model: str) -> st.SearchStrategy[Any]:
    """Return a strategy of bodies: fields that fit, now and then one of another type or with another name."""
    fit = st.fixed_dictionaries(
        {needed: fields[needed], **({"model": st.just(model)} if model else {})},
        optional={name: values for name, values in fields.items() if name != needed},
    )
    names = st.sampled_from(sorted(fields)) | TEXTS
    wild = st.dictionaries(names, JSON, max_size=2)
    return st.builds(lambda body, more: {**body, **more}, fit, st.just({}) | wild)


def send_bodies(target: Target, paths: Mapping[str, Any], number: int) -> None:
    """Send bodies that follow the fields of each path, the same ones at each run."""
    with httpx.Client(timeout=120) as client:
        for path, fields in paths.items():
            _send_bodies(target, client, path, fields, number)


def _send_bodies(target: Target, client: httpx.Client, path: str, fields: Any, number: int) -> None:
    @settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies(fields, NEEDED[path], target.model))
    def send(body: Any) -> None:
        target.post(client, path, json.dumps(body).encode(), f"{path} {json.dumps(body)[:300]}")

    send()


def send_raw(target: Target, paths: Sequence[str], *, largest: bool = True) -> None:
    """Send bodies that no library would write; the largest that is read takes seconds to tokenize."""
    with httpx.Client(timeout=120) as client:
        for path in paths:
            for label, body in RAW.items():
                if largest or label != "7 MiB":
                    target.post(client, path, body, f"{path} {label}")
        for path in ("/", "/v1/../../etc/passwd", "/%2e%2e/etc/passwd", "/v1/nothing", f"/{'x' * 5000}"):
            target.check(path, client.get(f"{target.root}{path}", headers=dict(target.headers)))
        for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
            answer = client.request(method, f"{target.root}{paths[0]}", headers=dict(target.headers))
            target.check(f"{method} {paths[0]}", answer)


def send_heads(target: Target, path: str = "/v1/models") -> dict[str, int]:
    """Send heads of other hosts and pages; return each one's status."""
    statuses = {}
    for label, (head, _) in HEADS.items():
        with socket.create_connection(target.place, timeout=60) as one:
            more = b"".join(
                b"\r\n%s: %s" % (name.encode(), value.encode()) for name, value in target.headers.items()
            )
            one.sendall(f"GET {path} HTTP/1.1\r\n".encode() + head + more + b"\r\nConnection: close\r\n\r\n")
            statuses[label] = int(one.makefile("rb").readline().split()[1])
    return statuses


def leave_early(target: Target, path: str, body: Mapping[str, Any], times: int) -> None:
    """Close connections at each point of a request: its head, its body, its answer, its stream."""
    content = json.dumps({**body, "stream": True}).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{more}"
    whole = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    sent = [
        whole[:5],
        whole[:60],
        whole[:-3],
        whole,
        chunked + b"zz\r\n",
        chunked + b"5\r\nab",
        b"\x16\x03\x01\x02",
    ]
    sent.append(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n")
    for number in range(times):
        for data in sent:
            with socket.create_connection(target.place, timeout=60) as one:
                try:
                    one.sendall(data)
                    if data is whole and number % 2:
                        one.settimeout(0.05)
                        one.recv(10)
                except OSError:
                    pass  # the server may have closed it first
            target.statuses[0] += 1


def hold_connections(target: Target, number: int) -> bool:
    """Return whether a good request is answered beside many connections that say half a word each."""
    held = []
    try:
        for _ in range(number):
            one = socket.create_connection(target.place, timeout=60)
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
            held.append(one)
        target.statuses[0] += number
        return target.lives()
    finally:
        for one in held:
            one.close()


def main(root: str, model: str, number: int) -> int:
    started = time.monotonic()
    target = Target(root, ("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 2}), model=model)
    calls = {**CALLS, **TOKENIZING}
    send_bodies(target, calls, number)
    send_raw(target, list(calls))
    heads = send_heads(target)
    leave_early(target, *target.good, times=50)
    answered = hold_connections(target, 1000)
    print(f"{sum(target.statuses.values())} requests in {time.monotonic() - started:.0f} s")
    print("statuses (0: closed by the caller):", dict(sorted(target.statuses.items())))
    print("heads:", heads, "beside 1,000 connections:", answered, "after all:", target.lives())
    print(f"{len(target.wrong)} wrong", *target.wrong[:40], sep="\n")
    return 1 if target.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
