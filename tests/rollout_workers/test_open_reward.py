"""The Open Reward Standard against a server: calls, rewards, ends; one that fails, hangs, dies or raves.

WHETSTONE_ORS and WHETSTONE_OPENREWARD name a Python that has the package, whose own server then answers, too.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.environments import Step
from contracts.errors import EpisodeError, InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.open_reward import OpenReward, _num_tasks
from rollout_workers.tools import open_reward_session
from rollout_workers.tools.open_reward_answers import opening_of
from rollout_workers.tools.tool_calls import Call, Parsed, as_text, written
from tests.chat_templates import CALLS_TOOLS, chat_tokenizer
from tests.rollout_workers import killable_server, open_reward_server
from tests.rollout_workers.episodes import WritingEngine, lease, play

SERVER = Path(__file__).with_name("open_reward_server.py")
OFFICIAL = {name: os.environ.get(f"WHETSTONE_{name.upper()}") for name in ("ors", "openreward")}
PYTHONS = [[sys.executable], *([python, name] for name, python in OFFICIAL.items() if python)]
PATIENCE_S = 120.0


class Server(killable_server.Server):
    """A server that writes a log."""

    def __init__(self, python: list[str], log: Path) -> None:
        self._log = log
        super().__init__([python[0], str(SERVER)], [str(log), *python[1:]], "/list_environments")

    def log(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def has_logged(self, *lines: str) -> bool:
        until = time.monotonic() + PATIENCE_S
        while self.log() != list(lines) and time.monotonic() < until:
            time.sleep(0.05)
        return self.log() == list(lines)


def served(python: list[str], folder: Path) -> Iterator[Server]:
    server = Server(python, folder / "log")
    yield server
    server.stop()


@pytest.fixture(params=PYTHONS, ids=[python[-1].rpartition("/")[2] for python in PYTHONS])
def any_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    yield from served(request.param, tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    yield from served([sys.executable], tmp_path)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    plays: list[Any] = []

    def make(server: Server, **options: Any) -> Any:
        plays.append(settings(server, **options).make())
        return plays[-1]

    yield make
    for opened in plays:
        opened.close()


def settings(server: Server, **options: Any) -> OpenReward:
    return build(OpenReward, {"url": f"{server.url}/", **options}, "environment")


def task(number: int, text: str = "") -> Prompt:
    return Prompt(f"episodes/train/{number}", text, meta={"seed": number})


def says(*texts: str) -> str:
    return as_text(Parsed("", tuple(Call("say", {"text": text}) for text in texts)))


def contents(step: Step) -> list[str]:
    return [str(message["content"]) for message in step.observation.messages]


def test_a_model_that_calls_a_tool_plays_the_game(any_server: Server) -> None:
    its = chat_tokenizer(CALLS_TOOLS)
    answers = [f"Hm. {written([Call('say', {'text': text})])}<|stop|>" for text in ("moon", "sun")]
    left = iter(answers)
    engine = WritingEngine(its, 4096, lambda _: tuple(its(next(left), add_special_tokens=False)["input_ids"]))
    chosen = settings(any_server, template="chat")
    (rollout,) = play(chosen, engine, [replace(lease(max_tokens=64), prompt=task(0, "Play."))])
    assert [turn.reward for turn in rollout.turns] == [-0.25, 1.0] and rollout.total_reward == 0.75
    assert rollout.info == {"calls": 2.0, "call_errors": 0.0}
    whole = its.decode(rollout.tokens, skip_special_tokens=False)
    assert '"name": "say", "description": "Say the word."' in whole and "user\nSay 'sun'.<|stop|>" in whole
    assert "<|start|>tool\nNo: moon, 1<|stop|>" in whole
    trained = [token for token, mask in zip(rollout.tokens, rollout.loss_mask, strict=True) if mask]
    assert its.decode(trained, skip_special_tokens=False) == "".join(answers)
    assert any_server.has_logged("begins 0", "call 0", "call 0", "ends 0")


def test_results_refusals_and_ends_are_the_servers(any_server: Server, made: Callable[..., Any]) -> None:
    play = made(any_server, error_reward=-1.0, max_result_tokens=1000)
    opened = play.reset(task(2, "Play."), 0)
    assert opened.text == "Say 'star'.\n" and opened.header.startswith("Play.\n\nYou may call these tools")
    assert [tool["function"]["name"] for tool in opened.tools] == ["say"]
    step = play.step(says("none", "no"))
    assert contents(step) == ["No: none, 1", "No: no, 2"] and step.reward == -0.25
    step = play.step(as_text(Parsed("", (Call("oracle", {}), Call("say", {"txt": "x"})))))
    assert (step.reward, step.info["call_errors"], step.terminated) == (-2.0, 2.0, False)
    assert contents(step)[0] == "Error: 'oracle' is not a valid tool"
    assert contents(step)[1].startswith("Error: Tool input validation error")
    step = play.step(says("star", "star"))  # nothing is called after the end
    assert (contents(step), step.reward, step.terminated) == (["Yes: star"], 1.0, True)
    word = open_reward_server.WORDS[4]  # longer than a chunk, with blanks and odd line ends everywhere
    play.reset(task(4), 0)
    assert contents(play.step(says(word.strip()))) == [f"Yes: {word}"]
    play.reset(task(2), 0)
    step = play.step(as_text(Parsed("I give up.")))
    assert (step.reward, step.terminated) == (0.0, True)
    games = [
        *["begins 2", *["call 2"] * 3, "ends 2"],
        *["begins 4", "call 4", "ends 4"],
        "begins 2",
        "ends 2",
    ]
    assert any_server.has_logged(*games)


def test_a_server_that_fails_hangs_or_dies_is_told_and_can_be_played_again(
    any_server: Server, made: Callable[..., Any]
) -> None:
    play = made(any_server, step_timeout_s=1.0, start_timeout_s=PATIENCE_S)
    where = f"environment.url={any_server.url}: "
    play.reset(task(0), 0)
    with pytest.raises(EpisodeError, match=f"^{where}a call of say failed on the server: the board broke$"):
        play.step(says("fails"))
    play.reset(task(0), 0)
    began = time.monotonic()
    with pytest.raises(
        EpisodeError, match=r"no answer to a call of say in 0\.\d+ s; raise environment\.step_timeout"
    ):
        play.step(says("hangs"))
    assert time.monotonic() - began < 1
    assert any_server.log()[-1] == "ends 0"
    play.reset(task(0), 0)
    with pytest.raises(EpisodeError, match=r"a call of say .*(Read|Protocol|Connect)Error"):
        play.step(says("dies"))
    play._settings = play._settings.model_copy(update={"start_timeout_s": 1.0})
    with pytest.raises(
        EpisodeError, match=r"no answer to reset in 0\.9 s \(ConnectError: .*raise environment\.start"
    ):
        play.reset(task(0), 0)
    any_server.start()
    play._settings = play._settings.model_copy(update={"start_timeout_s": PATIENCE_S})
    play.reset(task(0), 0)
    any_server.stop()
    any_server.start()  # and has forgotten the session
    with pytest.raises(EpisodeError, match="a call of say failed: 404 Active environment not found"):
        play.step(says("sun"))
    play.reset(task(0), 0)
    assert play.step(says("sun")).terminated


@pytest.mark.parametrize("mood", [*open_reward_server.NONSENSE, "page"])
def test_nonsense_is_told_and_ends_the_session(mood: str, server: Server, made: Callable[..., Any]) -> None:
    play = made(server)
    play.reset(task(0), 0)
    with pytest.raises(EpisodeError, match=r"a call of say was answered by .*; expected"):
        play.step(says(mood))
    assert server.log()[-1] == "ends 0"
    assert play.reset(task(3), 0).text == "Say 'sea'.\n"


def test_an_answer_that_never_ends_ends_the_episode(server: Server, made: Callable[..., Any]) -> None:
    play = made(server)
    play.reset(task(0), 0)
    play.step(says("floods"))
    with pytest.raises(EpisodeError, match="reset failed: the answer has more than 16777216 bytes; exp"):
        play.reset(task(0), 0)
    assert server.has_logged("begins 0", "call 0", "ends 0", "begins 0", "ends 0")


def test_what_a_server_refuses_of_a_model_ends_the_episode_and_not_the_run(
    server: Server, made: Callable[..., Any]
) -> None:
    play = made(server)
    play.reset(task(0), 0)
    with pytest.raises(EpisodeError, match="a call of say was refused: 400 no such text"):
        play.step(says("refused"))
    assert server.log()[-1] == "ends 0"


def test_an_episode_that_the_worker_ends_leaves_no_session(server: Server) -> None:
    its = chat_tokenizer(CALLS_TOOLS)
    engine = WritingEngine(
        its, 4096, lambda _: tuple(its(written([Call("say", {"text": "moon"})]))["input_ids"])
    )
    chosen = settings(server, template="chat", max_turns=1)
    (rollout,) = play(chosen, engine, [replace(lease(max_tokens=64), prompt=task(0, "Play."))])
    assert len(rollout.turns) == 1
    assert server.has_logged("begins 0", "call 0", "ends 0")


def test_halves_of_surrogate_pairs_in_a_task_reach_no_tokenizer() -> None:
    tools = {"tools": [{"name": "say", "description": "\ud800", "input_schema": {}}]}
    opening = opening_of([{"type": "text", "text": "Say \udfff."}], tools)
    assert opening.text == "Say ?."
    assert opening.tools[0]["function"]["description"] == "?"


def test_a_broken_stream_is_resumed_and_a_busy_server_asked_again(
    server: Server, made: Callable[..., Any]
) -> None:
    play = made(server)
    play.reset(task(0), 0)
    assert contents(play.step(says("breaks", "busy", "again"))) == [
        "No: breaks, 1",
        "No: busy, 2",
        "No: again, 3",
    ]
    assert server.log() == ["begins 0", "call 0", "call 0", "call 0"]  # nothing was made twice


def test_an_answer_without_a_call_is_graded_where_the_environment_says_so(
    server: Server, made: Callable[..., Any]
) -> None:
    play = made(server)
    for answer, reward in (("<think>Sun?</think>\nmoon", 1.0), ("sun", 0.0), ("<think>moon", 0.0)):
        assert [tool["function"]["name"] for tool in play.reset(task(1), 0).tools] == ["say"]
        step = play.step(as_text(Parsed(answer)))
        assert (step.reward, step.terminated) == (reward, True)


def test_a_session_in_use_shows_signs_of_life_and_a_closed_one_none(
    server: Server, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_reward_session, "PING_S", 0.05)
    play = made(server)
    play.reset(task(0), 0)
    until = time.monotonic() + PATIENCE_S
    while server.log().count("ping 0") < 3 and time.monotonic() < until:
        time.sleep(0.05)
    play.close()
    lines = server.log()
    assert lines.count("ping 0") >= 3 and lines[-1] == "ends 0"


def test_wrong_settings_say_what_is_expected(
    server: Server, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _num_tasks.cache_clear()
    settings(server).check()
    settings(server).check_prompt(task(4))
    with pytest.raises(InputError, match=r"no task 5: environment\.split=train has 5, from 0 on"):
        settings(server).check_prompt(task(5))
    with pytest.raises(InputError, match="expected task=episodes"):
        settings(server).check_prompt(Prompt("p", ""))
    with pytest.raises(InputError, match="reset was refused: 400 Invalid index"):
        made(server).reset(task(5), 0)
    for option, text in (
        ({"id": "gam"}, "environment.id=gam: the server has no such environment; did you mean"),
        ({"split": "trains"}, "environment.split=trains: the server has no such split; did you mean"),
        ({"key_variable": "NO_SUCH"}, "environment.key_variable=NO_SUCH: this variable is not set"),
        ({"url": f"{server.url}/no"}, "expected a running server of the Open Reward Standard"),
    ):
        with pytest.raises(InputError, match=text):
            settings(server, **option).check()
    monkeypatch.setenv("MY_KEY", "wrong")
    with pytest.raises(InputError, match="reset was refused: 401 no such key"):
        made(server, id="GAME", key_variable="MY_KEY").reset(task(0), 0)
    with pytest.raises(InputError, match="memory=2: the model would forget the question"):
        settings(server, memory=2)
