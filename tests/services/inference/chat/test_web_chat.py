"""`whetstone chat --web`: the server as others may speak to it, and the page in a real browser."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.rollout import Sampling
from services.inference.chat.prompts import Lines, Reader
from services.inference.chat.speaker import Answer, Speaker, load_tokenizer
from services.inference.chat.web_chat import chat_app, facts_of
from services.inference.generation.run_model import find_model
from services.terminal.web_pages import listen
from tests.browser import browser_tab
from tests.chat_server import running
from tests.models import NUMBERS, make_tiny_model
from tests.until import served_until_ctrl_c, until

EVIL = ("<script>document.title='evil'</script>", "<img/src=x/onerror=document.title='evil'>", "<b>&amp;</b>")
LENGTH = 24  # tokens of an answer
SAMPLING = Sampling(max_tokens=LENGTH, temperature=0.0)
TOKEN = "a-token-of-the-tests-own"


class Slow(Speaker):
    """A speaker with `pause_s` after each piece; `fails` makes it break down."""

    pause_s, fails = 0.0, False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.answers: list[Answer] = []
        self.at_work = threading.Lock()

    def answer(
        self, tokens: Sequence[int], say: Callable[[str], None], is_stopped: Callable[[], bool] = bool
    ) -> Answer:
        def say_slowly(text: str) -> None:
            say(text)
            time.sleep(self.pause_s)
            if self.fails:
                raise RuntimeError("<b>no memory</b> is left")

        assert self.at_work.acquire(blocking=False), "two answers at a time"
        try:
            self.answers.append(super().answer(tokens, say_slowly, is_stopped))
        finally:
            self.at_work.release()
        return self.answers[-1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes numbers and scripts; <pad>, <eos> and <unk> are never the likeliest."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, vocab=[*EVIL, *NUMBERS[:8]], window=64, sharpness=4.0, seed=5)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        lm.lm_head.weight[:3] = 0
    lm.save_pretrained(folder)
    return folder


@pytest.fixture
def speaker(path: Path) -> Slow:
    model = find_model(str(path))
    return Slow(model, load_tokenizer(model), SAMPLING, 0)


@contextmanager
def serving(path: Path, speaker: Speaker, token: str = "") -> Iterator[str]:
    reader = Reader(Lines(load_tokenizer(find_model(str(path))), None), room=40)
    with listen("127.0.0.1", 0, token) as door:
        app = chat_app(facts_of("tiny", SAMPLING, None, ""), reader, speaker, door.host, door.token)
        with running(app, door.socket):
            yield door.url.rstrip("/")


@pytest.fixture
def url(path: Path, speaker: Slow) -> Iterator[str]:
    with serving(path, speaker) as address:
        yield address


def asking(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}


def events(url: str, *contents: str) -> list[dict[str, Any]]:
    answered = httpx.post(f"{url}/api/answer", json=asking(*contents), timeout=60)
    return [json.loads(line) for line in answered.text.splitlines()]


# Over HTTP


def test_an_answer_is_streamed_and_depends_on_nothing_before(url: str, speaker: Slow) -> None:
    speaker.pause_s = 0.02
    with httpx.stream("POST", f"{url}/api/answer", json=asking("3 5"), timeout=60) as response:
        came = [(json.loads(line), time.monotonic()) for line in response.iter_lines()]
    (first, *pieces, last) = (event for event, _ in came)
    assert (first, last) == ({"forgotten": 0}, {"end": "length"})
    direct = speaker.answer([9, 11], lambda _: None)  # 3 special tokens and EVIL's 3 come before "0"
    assert "".join(piece["text"] for piece in pieces) == direct.text
    assert came[-2][1] - came[1][1] > 0.02 * LENGTH / 2  # over a time, not at once at its end
    speaker.pause_s = 0.0
    assert events(url, "1 " * 20, "2 " * 20, "3 " * 10, "4", "5")[0] == {"forgotten": 2}  # 52 tokens, 40 fit
    assert events(url, "3 5") == [first, *pieces, last]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        asking(" \n"),
        {"messages": [{"role": "system", "content": "3"}]},
        {"messages": [{"role": "assistant", "content": "3"}]},
        asking(*["3"] * 1001),
        asking("3 " * 41),
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": [{"role": "user", "content": "3", "more": NaN}]}',
    ],
)
def test_wrong_conversations_are_refused(url: str, body: dict[str, Any] | str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    answered = httpx.post(
        f"{url}/api/answer", content=content, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answered.status_code == 422 and isinstance(answered.json()["detail"], str)
    form = httpx.post(f"{url}/api/answer", content=content, headers={"Content-Type": "text/plain"})
    assert form.status_code == 415


def test_others_are_answered_while_a_long_text_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(self: Reader, messages: object) -> tuple[list[int], int]:
        begun.set()
        assert may_end.wait(60)
        return [9, 11], 0

    monkeypatch.setattr(Reader, "read", read)
    request = threading.Thread(target=events, args=(url, "3"))
    request.start()
    assert begun.wait(60)
    assert httpx.get(f"{url}/api/model", timeout=60).status_code == 200  # else it would wait for may_end
    may_end.set()
    request.join(60)


def test_one_answer_at_a_time_and_none_that_nobody_waits_for(url: str, speaker: Slow) -> None:
    speaker.pause_s = 0.02
    answers: list[list[dict[str, Any]]] = []
    threads = [threading.Thread(target=lambda: answers.append(events(url, "3"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(event["waiting"] for answer in answers for event in answer if "waiting" in event) == [1, 2]
    assert [answer[-1] for answer in answers] == [{"end": "length"}] * 3
    with httpx.stream("POST", f"{url}/api/answer", json=asking("3"), timeout=60) as response:
        next(line for line in response.iter_lines() if "text" in line)
    until(lambda: len(speaker.answers) == 4)
    assert speaker.answers[3].finish_reason is None


def test_a_secret_in_what_a_model_raises_is_hidden(
    url: str, speaker: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker.fails = True
    assert events(url, "3")[-1] == {"error": "RuntimeError: <b>no memory</b> is left"}
    monkeypatch.setenv("HF_TOKEN", "<b>no memory</b>")
    assert events(url, "3")[-1] == {"error": "RuntimeError: *** is left"}


def test_the_command_serves_until_ctrl_c(path: Path) -> None:
    with served_until_ctrl_c("chat", str(path), "--web", "--system", "1") as url:
        facts = httpx.get(f"{url}/api/model", timeout=60).json()
        assert (facts["name"], facts["system"]) == (str(path), "1")
        assert events(url, "3")[-1]["end"]


# In a browser


@pytest.fixture
def page(url: str) -> Iterator[Any]:
    with browser_tab() as tab:
        tab.goto(url)
        tab.wait_for_selector("#ask:not([hidden])")
        yield tab


def say(page: Any, text: str, end: str = "#send:not([hidden])") -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector(end)


def texts(page: Any, selector: str) -> list[str]:
    return list(page.locator(selector).all_text_contents())


def test_a_conversation_in_the_browser(page: Any, speaker: Slow) -> None:
    speaker.pause_s = 0.03
    say(page, "3 5", "#stop:not([hidden])")
    seen: list[str] = []
    while page.locator("#stop").is_visible():
        seen += texts(page, ".writing .said")
    assert len(set(seen)) > 4  # it grew before one's eyes
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    page.reload()  # a tab remembers its conversation
    page.wait_for_selector(".assistant")
    assert texts(page, ".said") == ["3 5", speaker.answers[0].text]
    assert texts(page, ".assistant .note") == [f"cut at {LENGTH} tokens"]
    page.click("#reset")
    speaker.pause_s = 0.0
    say(page, "3 5")
    assert texts(page, ".said") == ["3 5", speaker.answers[0].text]  # nothing of before is in it
    say(page, "3 " * 10)
    say(page, "5 " * 10)  # 10 + 24 + 10 = 44 tokens, 40 fit: the third question stands alone
    assert texts(page, ".rule .said") == ["the model no longer sees what is above"]
    assert page.locator(".forgotten").count() == 4


def test_keys_and_the_stop_button(page: Any, speaker: Slow) -> None:
    page.keyboard.type("3")  # the focus is in the field
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("5")
    speaker.pause_s = 0.1
    for stop in (lambda: page.keyboard.press("Escape"), lambda: page.click("#stop")):
        page.keyboard.press("Enter")
        page.wait_for_selector(".writing .said:not(:empty)")
        stop()
        page.wait_for_selector("#send:not([hidden])")
        assert texts(page, ".assistant .note")[-1] == "stopped"
        page.keyboard.type("7")  # the focus is back
    assert texts(page, ".user .said") == ["3\n5", "7"]
    until(lambda: [answer.finish_reason for answer in speaker.answers] == [None, None])


def test_texts_are_text_and_a_failed_question_can_be_sent_again(page: Any, speaker: Slow) -> None:
    for evil in EVIL:
        say(page, evil)
    assert texts(page, ".user .said") == list(EVIL)
    assert texts(page, ".assistant .said") == [answer.text for answer in speaker.answers]
    assert any(evil in answer.text for evil in EVIL[:2] for answer in speaker.answers)  # the model wrote such
    assert page.locator("#talk :is(script, img, b)").count() == 0
    assert page.title() == "tiny · Whetstone"
    say(page, "3 " * 50, ".error")
    assert "your message makes 50 tokens, and the model can read 40" in texts(page, ".error .said")[0]
    assert page.input_value("#text").startswith("3 3") and page.locator(".user").count() == 3
    say(page, "5")
    assert texts(page, ".error") == []


def test_the_page_asks_for_the_token(page: Any, path: Path, speaker: Slow) -> None:
    with serving(path, speaker, TOKEN) as url:
        assert httpx.get(f"{url}/api/model").status_code == 401
        page.goto(url)
        for token in ("wrong", TOKEN):
            page.fill("#token", token)
            with page.expect_response(f"{url}/api/model"):
                page.press("#token", "Enter")
        page.wait_for_selector("#ask:not([hidden])")
        say(page, "3")
        assert texts(page, ".user .said") == ["3"]
        page.evaluate("sessionStorage.clear()")
        page.goto("about:blank")
        page.goto(f"{url}/#token={TOKEN}")
        page.wait_for_selector("#ask:not([hidden])")
        assert TOKEN not in page.url
