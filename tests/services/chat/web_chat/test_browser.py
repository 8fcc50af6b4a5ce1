"""The chat's page in a real browser: what is typed, what is streamed, what two tabs see."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from services.chat.prompts import Reader
from services.chat.speaker import Speaker
from tests.services.chat.web_chat.conftest import (
    CHROMIUM,
    EVIL,
    FACTS,
    LENGTH,
    Slow,
    asking,
    events,
    serving,
    until,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium to open the page in")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        yield opened
        opened.close()


class Tab:
    """A tab with the page open; what goes wrong in it is in `faults`."""

    def __init__(self, context: Any, url: str) -> None:
        self.page = context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.goto(url)
        self.page.wait_for_selector("#ask:not([hidden]), #door:not([hidden])")

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def ask(self, text: str) -> str:
        self.say(text)
        self.wait()
        return self.texts(".assistant .said")[-1]

    def wait(self) -> None:
        self.page.wait_for_selector("#send:not([hidden])", timeout=60_000)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_text_contents()
        return found


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    opened = browser.new_context()
    opened.set_default_timeout(60_000)
    yield opened
    opened.close()


def test_a_conversation_in_the_browser(context: Any, url: str, speaker: Slow) -> None:
    tab = Tab(context, url)
    speaker.pause_s = 0.03
    tab.say("3 5")
    seen: list[str] = []
    while tab.page.locator("#stop").is_visible():
        seen += tab.texts(".writing .said")
    lengths = sorted({len(text) for text in seen})
    assert len(lengths) > 4  # it grew before one's eyes
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert tab.texts(".said") == ["3 5", speaker.answers[0].text]
    assert tab.texts(".note") == [f"cut at {LENGTH} tokens"]

    tab.page.reload()  # a tab remembers its conversation
    tab.page.wait_for_selector(".assistant")
    assert tab.texts(".said") == ["3 5", speaker.answers[0].text]

    tab.page.click("#reset")
    assert tab.texts(".said") == []
    assert tab.page.locator("#empty").is_visible()
    speaker.pause_s = 0.0
    assert tab.ask("3 5") == speaker.answers[0].text  # nothing of before is in it
    assert tab.faults == []


def test_keys_and_the_stop_button(context: Any, url: str, speaker: Slow) -> None:
    tab = Tab(context, url)
    assert tab.page.evaluate("document.activeElement.id") == "text"
    assert tab.page.locator("#send").is_disabled()
    tab.page.keyboard.type("3")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("5")
    speaker.pause_s = 0.1
    for stop in (lambda: tab.page.keyboard.press("Escape"), lambda: tab.page.click("#stop")):
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector(".writing .said:not(:empty)")
        stop()
        tab.wait()
        assert tab.texts(".note")[-1] == "stopped"
        assert tab.page.evaluate("document.activeElement.id") == "text"
        tab.page.keyboard.type("7")
    assert tab.texts(".user .said") == ["3\n5", "7"]
    until(lambda: len(speaker.answers) == 2, "both answers to end")
    assert [answer.finish_reason for answer in speaker.answers] == [None, None]
    assert tab.faults == []


def test_what_is_said_is_text_whatever_it_looks_like(context: Any, url: str, speaker: Slow) -> None:
    tab = Tab(context, url)
    answers = [tab.ask(evil) for evil in EVIL]
    assert any(evil in answer for evil in EVIL[:2] for answer in answers)  # the model wrote such things, too
    assert tab.texts(".user .said") == list(EVIL)
    assert answers == [answer.text for answer in speaker.answers]
    assert tab.page.locator("#talk :is(script, img, b)").count() == 0
    assert tab.page.title() == "tiny · Whetstone"
    assert tab.faults == []


def test_two_tabs_do_not_mix(context: Any, url: str, speaker: Slow) -> None:
    one, other = Tab(context, url), Tab(context, url)
    speaker.pause_s = 0.02
    one.say("1 2")
    other.say("6 7")
    one.wait()
    other.wait()
    assert one.texts(".user .said") == ["1 2"]
    assert other.texts(".user .said") == ["6 7"]
    speaker.pause_s = 0.0
    separate = [httpx.post(f"{url}/api/answer", json=asking(text)) for text in ("1 2", "6 7")]
    alone = ["".join(event.get("text", "") for event in events(answered)) for answered in separate]
    assert [tab.texts(".assistant .said")[0] for tab in (one, other)] == alone
    assert alone[0] != alone[1]


def test_a_failure_is_shown_and_the_question_can_be_sent_again(context: Any, url: str, speaker: Slow) -> None:
    tab = Tab(context, url)
    tab.say("3 " * 50)
    tab.page.wait_for_selector(".error")
    assert "your message makes 50 tokens, and the model can read 40" in tab.texts(".error")[0]
    assert tab.page.input_value("#text").startswith("3 3")
    assert tab.texts("article") == []
    tab.page.fill("#text", "")
    speaker.fails = True
    tab.say("3")
    tab.page.wait_for_selector(".error")
    tab.wait()
    assert "RuntimeError: <b>no memory</b> is left" in tab.texts(".error")[0]
    speaker.fails = False
    assert tab.ask("5")
    assert tab.texts(".error") == []
    assert tab.faults == []


def test_a_long_conversation_shows_what_is_forgotten(context: Any, url: str) -> None:
    tab = Tab(context, url)
    tab.ask("3 " * 10)
    tab.ask("5 " * 10)
    # 10 + 24 + 10 = 44 tokens, 40 fit: the second question stands alone.
    assert tab.texts(".rule") == ["the model no longer sees what is above"]
    assert tab.page.locator(".forgotten").count() == 2


def test_the_page_asks_for_the_token(context: Any, loaded: tuple[Reader, Speaker], speaker: Slow) -> None:
    with serving(loaded[0], speaker, FACTS, token="s3cret") as url:
        tab = Tab(context, url)
        assert tab.page.title() == "Whetstone"
        for given in ("wrong", "s3cret"):
            tab.page.fill("#token", given)
            with tab.page.expect_response(f"{url}/api/model"):
                tab.page.press("#token", "Enter")
        tab.page.wait_for_selector("#ask:not([hidden])")
        assert tab.page.title() == "tiny · Whetstone"
        assert tab.ask("3")
        by_link = Tab(context, f"{url}/#token=s3cret")
        assert by_link.ask("3")
        assert "s3cret" not in by_link.page.url
