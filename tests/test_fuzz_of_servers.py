"""Our own servers under requests that no client should send: no fault of theirs, and none ends.

The reward servers' fuzz is in tests/reward_servers/test_http_fuzz.py; vLLM's server is in the long run.
"""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.network import http_guard, http_server
from contracts.network.http_guard import guarded
from contracts.rollout import Sampling
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.gateway import http_messages
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.reading import Reader as CallReader
from rollout_workers.gateway.server import MOST_BYTES, Gateway
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from rollout_workers.settings import RolloutSettings
from services.inference.chat.speaker import Speaker, load_tokenizer
from services.inference.generation.run_model import find_model
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.fuzz import (
    CALLS,
    CHATTING,
    HEADS,
    Target,
    hold_connections,
    leave_early,
    main,
    send_bodies,
    send_heads,
    send_raw,
)
from tests.rollout_workers.gateway.served import serve
from tests.services.inference.chat.test_web_chat import serving

SHORT = 25  # bodies a path; `-m long` sends more
DRAWN = Sampling(max_tokens=4, temperature=0.0)
ASK = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATES["default_system"])


@contextmanager
def served_model(folder: Path) -> Iterator[Target]:
    """A model behind our own server, as `serve-model --engine transformers` has it."""
    calls, settings = EngineCalls(), RolloutSettings(max_tokens=4, max_concurrent=16, dtype="float32")
    thread = EngineThread(lambda: TransformersEngine(str(folder), str(folder), 256, settings), calls)
    engine, form = thread.engine(), find_model(str(folder)).chat
    gateway = Gateway(name="tiny", public=ModelDoor(engine, CallReader(engine.tokenizer, form), calls, DRAWN))
    front = guarded(gateway, "127.0.0.1", None, most_bytes=MOST_BYTES, remedy="send less")
    root = gateway.start(app=front).removesuffix("/v1")
    yield Target(root, ("/v1/completions", {"prompt": "a", "max_tokens": 2}), model="tiny")
    gateway.stop()
    thread.stop()


@contextmanager
def agents_gateway(folder: Path) -> Iterator[Target]:
    """The gateway of programs in a run, behind the key of an episode that goes on."""
    with serve(folder) as served:
        door = served.door(max_turns=10**9)
        key = {"Authorization": f"Bearer {served.key(door)}"}
        root = served.address.removesuffix("/v1")
        yield Target(root, ("/v1/completions", {"prompt": "a", "max_tokens": 2}), key, model="any")


@contextmanager
def web_chat(folder: Path) -> Iterator[Target]:
    model_files = find_model(str(folder))
    speaker = Speaker(model_files, load_tokenizer(model_files), DRAWN, 0)
    with serving(folder, speaker) as root:
        yield Target(root.removesuffix("/"), ("/api/answer", ASK), is_openai=False)


SERVERS = {"serve-model": served_model, "gateway": agents_gateway, "chat --web": web_chat}


def fuzz(server: str, folder: Path, number: int, connections: int) -> Target:
    """Send everything to a server, and check that it answered well and lives."""
    with SERVERS[server](folder) as target:
        paths = CHATTING if server == "chat --web" else CALLS
        send_bodies(target, paths, number)
        send_raw(target, list(paths), largest=number > SHORT)
        leave_early(target, *target.good, times=2)
        if server != "gateway":  # which wants a key before anything else
            expected = {label: status for label, (_, status) in HEADS.items()}
            path = "/api/model" if server == "chat --web" else "/v1/models"
            assert send_heads(target, path) == expected
        assert hold_connections(target, connections)
        assert not target.wrong
        return target


@pytest.mark.parametrize("server", SERVERS)
def test_no_request_is_a_servers_fault_and_none_ends_it(server: str, model: Path) -> None:
    target = fuzz(server, model, SHORT, connections=100)
    assert target.statuses[200] > 5
    assert target.statuses.total() > 90


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("server", SERVERS)
def test_no_request_of_many_is_a_servers_fault(server: str, model: Path) -> None:
    target = fuzz(server, model, 300, connections=1000)
    print(server, target.statuses.total(), "requests", dict(sorted(target.statuses.items())))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.vllm
def test_no_request_of_many_is_the_fault_of_vllms_server_behind_our_front(model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "serve-model",
        str(model),
        "--engine",
        "vllm",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            root = re.findall(r"(http://[\d.:]+)/v1", process.stdout.readline())[0]
            assert main(root, "tiny", 300) == 0
        finally:
            process.terminate()


def test_slow_callers_are_sent_away_and_others_answered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.5)
    monkeypatch.setattr(http_guard, "BODY_S", 0.5)
    monkeypatch.setattr(http_messages, "BODY_S", 0.5)
    for server in (served_model, web_chat):
        with server(model) as target:
            path, _ = target.good
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode()
            for sent, status in ((b"", None), (head, None), (head + b"Content-Length: 9\r\n\r\n{", b" 408 ")):
                answer = _last_words(target, sent)
                assert answer == b"" if status is None else status in answer
            assert target.lives()
            with httpx.Client() as client:  # a connection that is kept has no late head
                for _ in range(3):
                    assert client.post(f"{target.root}{path}", json=target.good[1]).status_code == 200
                    time.sleep(0.3)


def _last_words(target: Target, sent: bytes) -> bytes:
    """Return what the server says before it closes a connection whose caller waits."""
    with socket.create_connection(target.place, timeout=20) as one:
        one.sendall(sent)
        answer: Any = one.makefile("rb").read()
        return bytes(answer)
