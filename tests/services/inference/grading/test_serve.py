"""`whetstone serve`: what it refuses at once, and a real one from start to SIGTERM."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from contracts.errors import InputError
from services.commands.serve import run
from services.inference.grading.served import chosen, settings_from
from tests.free_ports import free_port

GRADERS = "tests.reward_servers.graders"


def labels(names: list[str]) -> list[list[str]]:
    return [[part.label for part in parts] for parts in chosen(names)]


def test_without_names_what_needs_nothing_more_is_served() -> None:
    rewards, metrics = labels([])
    assert {"dates", "increasing_numbers", "length", "rouge", "sentiment"} <= {*rewards} & {*metrics}
    assert not {"learned_reward", "bert_score", "cider", "spice"} & {*rewards}


def test_a_part_with_options_is_a_mapping() -> None:
    rewards, metrics = chosen(["{name: rouge, rouge_type: rouge1, label: r1}"])
    assert [(part.label, part.options) for part in rewards] == [("r1", {"rouge_type": "rouge1"})]
    assert [part.label for part in metrics] == ["r1"]


@pytest.mark.parametrize("word", ["{name: [}", "{rouge_type: rouge1}", "{}"])
def test_a_mapping_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=r"not YAML|expected a mapping with a name"):
        chosen([word])


def test_a_class_is_served_as_what_it_is() -> None:
    assert labels(["dates", f"{GRADERS}:Words", f"{GRADERS}:Vowels"]) == [
        ["dates", "Words"],
        ["dates", "Vowels"],
    ]


def test_settings_come_with_or_without_their_prefix() -> None:
    settings = settings_from(["rouge.replicas=2", "reward_servers.default.timeout_s=3.5"], "0.0.0.0", 9000)
    assert (settings.for_label("rouge").replicas, settings.for_label("rouge").timeout_s) == (2, 3.5)
    assert (settings.http_host, settings.http_port) == ("0.0.0.0", 9000)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_others_are_let_in_with_a_token_alone(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHETSTONE_TOKEN", raising=False)
    monkeypatch.delenv("WHETSTONE_TOKEN_FILE", raising=False)
    with pytest.raises(InputError, match=r"lets others in, and there is no token\. Set WHETSTONE_TOKEN"):
        run(["length", "--host", host])
    monkeypatch.setenv("WHETSTONE_TOKEN", "short")
    with pytest.raises(InputError, match="WHETSTONE_TOKEN: expected 16 or more letters"):
        run(["length", "--host", host])


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rogue"], "did you mean 'rouge'"),
        (["rouge", "rouge"], "both labelled 'rouge'"),
        (["length", "rouge.replicas=2"], "reward_servers.rouge: no reward or metric has this label"),
        (["rouge", "rouge.replicas=two"], "reward_servers.rouge.replicas: got 'two'"),
        (["rouge", "rouge.replica=2"], "did you mean 'replicas'"),
        (["rouge", "http_port=1", "http_port.x=2"], "already has a value"),
        (["rouge", "http_port=0"], "http_port: got 0; Input should be greater than or equal to 1"),
        (["no_such_module:Mine"], "importing no_such_module failed"),
    ],
)
def test_bad_requests_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(argv)


def test_a_taken_port_is_refused(taken_port: int) -> None:
    with pytest.raises(InputError, match="choose another --host or --port"):
        run(["length", "--port", str(taken_port)])


def listening_addresses(pid: int) -> set[str]:
    """Where the process and all that it started can be reached.

    Not counted are Serve's replicas: each opens a port on every address, and there is no setting for it.
    """
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return {
        connection.laddr.ip
        for process in family
        if not process.name().startswith("ray::ServeRepli")
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.ray
def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    token = "a-token-of-the-tests-own"
    (tmp_path / "token").write_text(f"{token}\n")
    environment |= {"WHETSTONE_TOKEN_FILE": str(tmp_path / "token")}
    server = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "serve", f"{GRADERS}:Words", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stdout is not None
        printed = []
        for line in server.stdout:
            printed.append(line)
            if line.startswith("Ctrl-C"):
                break
        assert f" http://127.0.0.1:{port}/score/Words" in "".join(printed)
        assert "Authorization: Bearer $WHETSTONE_TOKEN" in "".join(printed) and token not in "".join(printed)
        body = {"samples": [{"text": "a b c"}]}
        address, known = f"http://127.0.0.1:{port}/score/Words", {"Authorization": f"Bearer {token}"}
        for headers in ({}, {"Authorization": f"Bearer {token}x"}):
            assert httpx.post(address, json=body, headers=headers, timeout=30).status_code == 401
        answer = httpx.post(address, json=body, headers=known, timeout=30).json()
        assert answer == {"scores": [{"score": 3.0, "error": None}]}
        assert listening_addresses(server.pid) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            server.terminate()
            server.wait(60)
