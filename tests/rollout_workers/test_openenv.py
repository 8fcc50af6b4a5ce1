"""OpenEnv's protocol against a server: texts, JSON, rewards; a server that fails, hangs, dies or is full.

WHETSTONE_OPENENV names a Python that has openenv-core, whose own server then answers, too.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.environments import Observation, Step
from contracts.errors import EpisodeError, InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.openenv import OpenEnv
from rollout_workers.openenv_session import Session
from tests.rollout_workers.killable_server import Server

SERVER = Path(__file__).with_name("openenv_server.py")
OFFICIAL = os.environ.get("WHETSTONE_OPENENV")
PYTHONS = [[sys.executable], *([[OFFICIAL, "official"]] if OFFICIAL else [])]
PROMPT = Prompt("episodes/train/7", "Say something.", meta={"seed": 7})


@pytest.fixture(params=PYTHONS, ids=[python[-1].rpartition("/")[2] for python in PYTHONS])
def serve(request: pytest.FixtureRequest) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(most: int = 8) -> Server:
        python, *name = request.param
        made.append(Server([python, str(SERVER)], [str(most), *name], "/schema"))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def settings(server: Server, **options: Any) -> OpenEnv:
    return build(OpenEnv, {"url": f"{server.url}/", **options}, "environment")


def test_an_episode_is_played_by_texts(serve: Callable[..., Server]) -> None:
    play = settings(serve(), observation_field="echo", action={"loud": True}).make()
    assert play.reset(PROMPT, 0) == Observation("ready 7\n", "Say something.\n")
    assert play.step(" hello\n") == Step(Observation("HELLO\n"), 0.5, info={"steps": 1.0, "invalid": 0.0})
    assert play.step("none").reward == 0.0
    end = play.step("stop")
    assert (end.reward, end.terminated, end.info["steps"]) == (0.4, True, 3.0)
    assert play.reset(PROMPT, 0).text == "ready 7\n"  # the next episode, in the same session
    play.close()


def test_actions_and_observations_are_json_where_texts_do_not_do(serve: Callable[..., Server]) -> None:
    server = serve()
    play: Any = settings(server, invalid_reward=-1).make()
    play._field = None  # as with an action of several fields
    assert play.reset(PROMPT, 0).text == '{"echo": "ready 7", "count": 0}\n'
    for wrong in ("hello", "[1]", '{"message": 3}', '{"message": "\\ud800"}'):
        step = play.step(wrong)
        assert (step.reward, step.observation.text) == (-1.0, '{"echo": "ready 7", "count": 0}\n')
    step = play.step('{"message": "hi", "loud": true}')
    assert (step.reward, step.observation.text) == (0.2, '{"echo": "HI", "count": 1}\n')
    assert step.info == {"steps": 5.0, "invalid": 0.8}
    play.close()


def test_each_environment_has_a_session_of_its_own_and_the_last_one_waits_for_a_free_one(
    serve: Callable[..., Server],
) -> None:
    server = serve(most=2)
    one, two, three = (
        settings(server, observation_field="count", start_timeout_s=2.0).make() for _ in range(3)
    )
    for play in (one, two):
        play.reset(PROMPT, 0)
    assert [one.step("a").observation.text, one.step("a").observation.text] == ["1\n", "2\n"]
    assert two.step("a").observation.text == "1\n"
    with pytest.raises(EpisodeError, match=r"larger max_concurrent_envs, or lower environment\.num_parallel"):
        three.reset(PROMPT, 0)
    one.close()
    assert three.reset(PROMPT, 0).text == "0\n"
    for play in (two, three):
        play.close()


def test_a_server_that_fails_hangs_or_dies_is_told_and_can_be_played_again(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    play = settings(server, step_timeout_s=1.0, start_timeout_s=5.0, observation_field="echo").make()
    play.reset(PROMPT, 0)
    with pytest.raises(EpisodeError, match="step failed with EXECUTION_ERROR: the board broke"):
        play.step("fails")
    assert play.reset(PROMPT, 0).text == "ready 7\n"
    began = time.monotonic()
    with pytest.raises(EpisodeError, match=r"no answer to step in 0\.9 s; raise environment\.step_timeout_s"):
        play.step("hangs")
    assert time.monotonic() - began < 4
    assert play.reset(PROMPT, 0).text == "ready 7\n"
    with pytest.raises(EpisodeError, match=rf"url={server.url}: step failed, because the connection failed"):
        play.step("dies")
    with pytest.raises(EpisodeError, match="reset failed, because the connection failed"):
        play.reset(PROMPT, 0)
    for _ in range(2):  # a server that is started anew between episodes costs none
        server.stop()
        server.start()
        assert play.reset(PROMPT, 0).text == "ready 7\n"
    play.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "reset failed, because the connection failed: the handshake was not completed"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "connection failed: .* HTTP 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "/ws is not an OpenEnv WebSocket"),
    ],
    ids=["closed", "loaded", "a page"],
)
def test_a_handshake_that_a_dying_server_breaks_is_no_wrong_address(answer: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer_once() -> None:
            line, _ = server.accept()
            line.recv(65536)
            line.sendall(answer)
            line.close()

        server.settimeout(30)
        thread = threading.Thread(target=answer_once, daemon=True)
        thread.start()
        session = Session(f"http://127.0.0.1:{port}", start_timeout_s=30.0, step_timeout_s=30.0)
        with pytest.raises(EpisodeError, match=message):
            session.reset({})
        thread.join(60)


def test_wrong_settings_say_what_is_expected(serve: Callable[..., Server]) -> None:
    server = serve()
    settings(server).check()
    with pytest.raises(InputError, match="no such field; expected one of message, loud"):
        settings(server, action_field="text").check()
    play = settings(server, observation_field="board").make()
    with pytest.raises(InputError, match="no such field; expected one of echo, count"):
        play.reset(PROMPT, 0)
    play.close()
    with pytest.raises(InputError, match="expected an address such as"):
        build(OpenEnv, {"url": "127.0.0.1:8000"}, "environment")
    server.stop()
    with pytest.raises(InputError, match="expected a running server of OpenEnv"):
        settings(server).check()
