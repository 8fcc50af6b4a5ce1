"""A chat's page served by a model that takes its time: what its tests share."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.network.http_server import server_config
from contracts.rollout import Sampling
from services.chat.prompts import Lines, Reader
from services.chat.speaker import Answer, Speaker, load_tokenizer
from services.chat.web_chat import Facts, chat_app, listen
from services.chat.web_chat_answers import Answers
from services.generation.run_model import find_model
from tests.models import NUMBERS, make_tiny_model

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = ("<script>document.title='evil'</script>", "<img/src=x/onerror=document.title='evil'>", "<b>&amp;</b>")
LENGTH = 24  # tokens of an answer
FACTS = Facts("tiny", Sampling(max_tokens=LENGTH, temperature=0.0), None, "")


class Slow:
    """The speaker itself, with `pause_s` between its tokens; `fails` makes it break down."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self.pause_s, self.fails = 0.0, False
        self.answers: list[Answer] = []
        self.num_at_once = self.most_at_once = 0

    def answer(
        self, tokens: Sequence[int], say: Callable[[str], None], is_stopped: Callable[[], bool]
    ) -> Answer:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)

        def say_slowly(text: str) -> None:
            say(text)
            time.sleep(self.pause_s)
            if self.fails:
                raise RuntimeError("<b>no memory</b> is left")

        try:
            self.answers.append(self._speaker.answer(tokens, say_slowly, is_stopped))
        finally:
            self.num_at_once -= 1
        return self.answers[-1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes numbers and scripts, never an end: of that it is as good as incapable."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, vocab=[*EVIL, *NUMBERS[:8]], window=64, sharpness=4.0, seed=5)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        lm.lm_head.weight[:3] = 0  # <pad>, <eos> and <unk> are never the likeliest
    lm.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(path: Path) -> tuple[Reader, Speaker]:
    model = find_model(str(path))
    tokenizer = load_tokenizer(model)
    return Reader(Lines(tokenizer, None), room=40), Speaker(model, tokenizer, FACTS.sampling, 0)


@pytest.fixture
def speaker(loaded: tuple[Reader, Speaker]) -> Slow:
    return Slow(loaded[1])


@contextmanager
def serving(reader: Reader, speaker: Any, facts: Facts = FACTS, token: str | None = None) -> Iterator[str]:
    """The real server on loopback, in a thread; its address."""
    import uvicorn

    answers = Answers(speaker)
    with listen("127.0.0.1", 0, token) as door:
        app = chat_app(facts, reader, answers, door.host, token)
        server = uvicorn.Server(server_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door.socket]})
        thread.start()
        try:
            yield door.url.rstrip("/")
        finally:
            server.should_exit = True
            answers.close()
            thread.join(20)


@pytest.fixture
def url(loaded: tuple[Reader, Speaker], speaker: Slow) -> Iterator[str]:
    with serving(loaded[0], speaker) as address:
        yield address


def asking(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


# Over HTTP
