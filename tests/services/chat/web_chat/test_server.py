"""`whetstone chat --web`: the page in a real browser, and the server behind it as others may speak to it."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.errors import InputError
from services.chat.prompts import Reader
from services.chat.speaker import Speaker
from services.chat.web_chat import MOST_BYTES, listen
from services.commands.chat import run as chat
from tests.services.chat.web_chat.conftest import (
    LENGTH,
    Slow,
    asking,
    events,
    serving,
    until,
)

TOKEN = "a-token-of-the-tests-own"


def test_an_answer_is_streamed_and_is_the_speakers(
    url: str, speaker: Slow, loaded: tuple[Reader, Speaker]
) -> None:
    speaker.pause_s = 0.02
    with httpx.stream("POST", f"{url}/api/answer", json=asking("3 5")) as response:
        came = [(json.loads(line), time.monotonic()) for line in response.iter_lines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    (first, *pieces, last) = (event for event, _ in came)
    assert (first, last) == ({"forgotten": 0}, {"end": "length"})
    direct = loaded[1].answer([9, 11], lambda _: None)  # 3 special tokens and EVIL's 3 come before "0"
    assert "".join(piece["text"] for piece in pieces) == direct.text == speaker.answers[0].text
    assert came[-2][1] - came[1][1] > 0.02 * LENGTH / 2  # over a time, not at once at its end


def test_the_server_remembers_nothing(url: str) -> None:
    asked = [
        httpx.post(f"{url}/api/answer", json=asking(*said)) for said in (("3",), ("5", "7", "1"), ("3",))
    ]
    first, _, again = (events(response) for response in asked)
    assert first == again


def test_what_the_model_does_not_see_is_counted(url: str) -> None:
    answered = httpx.post(f"{url}/api/answer", json=asking("1 " * 20, "2 " * 20, "3 " * 10, "4", "5"))
    assert events(answered)[0] == {"forgotten": 2}  # 52 tokens, 40 fit; 12 without the first question


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b"null", 422),
        (b"\xff\xfe", 422),
        (b'{"messages": []}', 422),
        (b'{"messages": [{"role": "user", "content": " \\n"}]}', 422),
        (b'{"messages": [{"role": "system", "content": "3"}]}', 422),
        (b'{"messages": [{"role": "user", "content": 3}]}', 422),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 422),
        (b'{"messages": [{"role": "user", "content": "3", "more": 1}]}', 422),
        (b'{"messages": [{"role": "assistant", "content": "3"}]}', 422),
        (json.dumps(asking(*["3"] * 1001)).encode(), 422),
        (json.dumps(asking("3 " * 41)).encode(), 422),
        (b"[" * 100_000, 422),
        (b'{"messages": "' + b"a" * MOST_BYTES + b'"}', 413),
    ],
)
def test_a_wrong_body_is_refused_with_a_reason(url: str, body: bytes, status: int) -> None:
    answered = httpx.post(f"{url}/api/answer", content=body, headers={"Content-Type": "application/json"})
    assert answered.status_code == status
    assert answered.json()["detail"]


def test_a_body_without_a_length_is_counted_too(url: str) -> None:
    pieces = (b" " * 65536 for _ in range(2 * MOST_BYTES // 65536))
    headers = {"Content-Type": "application/json"}
    answered = httpx.post(f"{url}/api/answer", content=pieces, headers=headers)
    assert answered.status_code == 413
    assert answered.json()["detail"] == f"expected at most {MOST_BYTES} bytes: begin a new conversation"


def test_others_are_answered_while_a_long_text_is_read(
    url: str, loaded: tuple[Reader, Speaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(self: Reader, messages: object) -> tuple[list[int], int]:
        begun.set()
        assert may_end.wait(60)
        return [9, 11], 0

    monkeypatch.setattr(Reader, "read", read)
    found: list[httpx.Response] = []
    asked = threading.Thread(
        target=lambda: found.append(httpx.post(f"{url}/api/answer", json=asking("3"), timeout=60))
    )
    asked.start()
    assert begun.wait(60)
    assert httpx.get(f"{url}/api/model", timeout=60).status_code == 200  # else it would wait for may_end
    may_end.set()
    asked.join(60)
    assert found[0].status_code == 200


@pytest.mark.parametrize(
    "token", ["", "s3cret", "fifteen-letters", "with a blank between it", "Schlüssel-und-mehr"]
)
def test_a_token_that_can_be_guessed_is_refused(
    token: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WHETSTONE_TOKEN", "WHETSTONE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    words = [str(path), "--web", "--port", "0", "--host", "0.0.0.0"]
    if token:
        with pytest.raises(InputError, match="--token: expected 16 or more letters"):
            chat([*words, "--token", token])
        monkeypatch.setenv("WHETSTONE_TOKEN", token)
    with pytest.raises(InputError, match="WHETSTONE_TOKEN: expected 16" if token else "there is no token"):
        chat(words)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),  # a port that is forwarded
        ({"Host": "[::1]:8010"}, 200),
        ({"Host": "evil.example"}, 400),  # a name that was made to point here
        ({"Host": "127.0.0.1.evil.example:8010"}, 400),
        ({"Host": "[" * 3}, 400),
        ({"Host": ""}, 400),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),  # what a form of another page could send
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_pages_get_no_answer(url: str, headers: dict[str, str], status: int) -> None:
    sent = {"Content-Type": "application/json", **headers}
    answered = httpx.post(f"{url}/api/answer", content=json.dumps(asking("3")), headers=sent)
    assert answered.status_code == status


def test_the_page_fetches_nothing_and_lets_nobody_else_in(url: str) -> None:
    page, again = httpx.get(url), httpx.get(url)
    policy = page.headers["content-security-policy"]
    nonce = re.findall("'nonce-([^']+)'", policy)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(nonce) == 2
    assert nonce[0] == nonce[1] not in again.text
    assert page.text.count(f'nonce="{nonce[0]}"') == 2
    assert re.findall(r"(?:src|href|action)=\"(?!data:)", page.text) == []
    assert "://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{url}/openapi.json").status_code == httpx.get(f"{url}/docs").status_code == 404


def test_a_token_is_needed_for_all_but_the_page(loaded: tuple[Reader, Speaker], speaker: Slow) -> None:
    with serving(*loaded[:1], speaker, token=TOKEN) as url:
        assert httpx.get(url).status_code == 200
        for given in ({}, {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Authorization": TOKEN}):
            for answered in (
                httpx.get(f"{url}/api/model", headers=given),
                httpx.post(f"{url}/api/answer", json=asking("3"), headers=given),
            ):
                assert answered.status_code == 401
                assert answered.headers["www-authenticate"] == "Bearer"
                assert "tiny" not in answered.text
        # Of a machine that others reach, nobody knows all names.
        known = {"Authorization": f"Bearer {TOKEN}", "Host": "some-machine:8010"}
        assert httpx.get(f"{url}/api/model", headers=known).json()["name"] == "tiny"
        assert httpx.post(f"{url}/api/answer", json=asking("3"), headers=known).status_code == 200
        other = {**known, "Origin": "http://evil.example"}
        assert httpx.post(f"{url}/api/answer", json=asking("3"), headers=other).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "some-machine", ""])
def test_others_can_reach_it_with_a_token_only(host: str) -> None:
    with pytest.raises(InputError, match="lets others in, and there is no token"):
        listen(host, 0, None)


def test_an_address_in_use_is_refused() -> None:
    with listen("127.0.0.1", 0, None) as door:
        port = door.socket.getsockname()[1]
        with pytest.raises(InputError, match=f"can't listen on 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port, None)


def test_one_answer_at_a_time_and_the_others_are_told(url: str, speaker: Slow) -> None:
    speaker.pause_s = 0.01
    found: dict[int, list[dict[str, Any]]] = {}

    def ask(number: int) -> None:
        found[number] = events(httpx.post(f"{url}/api/answer", json=asking(str(number)), timeout=60))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        until(lambda number=number: speaker.num_at_once == 1 or number, "the first to be asked")
    for thread in threads:
        thread.join(60)
    assert speaker.most_at_once == 1
    assert len(speaker.answers) == 3
    assert sum("waiting" in event for each in found.values() for event in each) == 2
    assert all(each[-1] == {"end": "length"} for each in found.values())


def test_an_answer_that_nobody_waits_for_is_not_written(url: str, speaker: Slow) -> None:
    speaker.pause_s = 0.05
    with httpx.stream("POST", f"{url}/api/answer", json=asking("3")) as response:
        for line in response.iter_lines():
            if "text" in line:
                break
    until(lambda: speaker.answers, "the answer to end")
    (left,) = speaker.answers
    assert left.finish_reason is None
    speaker.pause_s = 0.0
    assert events(httpx.post(f"{url}/api/answer", json=asking("5")))[-1] == {"end": "length"}


def test_a_model_that_fails_is_told_and_asked_again(url: str, speaker: Slow) -> None:
    speaker.fails = True
    last = events(httpx.post(f"{url}/api/answer", json=asking("3")))[-1]
    assert last == {"error": "RuntimeError: <b>no memory</b> is left"}
    speaker.fails = False
    assert events(httpx.post(f"{url}/api/answer", json=asking("3")))[-1] == {"end": "length"}


def test_a_secret_in_what_a_model_raises_is_hidden(
    url: str, speaker: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "<b>no memory</b>")
    speaker.fails = True
    last = events(httpx.post(f"{url}/api/answer", json=asking("3")))[-1]
    assert last == {"error": "RuntimeError: *** is left"}


def test_the_command_serves_until_ctrl_c(path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "chat",
        str(path),
        "--web",
        "--port",
        "0",
        "--system",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = re.findall(r"http://[\d.:]+/", process.stdout.readline())[0]
            facts = httpx.get(f"{url}api/model", timeout=60).json()
            assert (facts["name"], facts["system"]) == (str(path), "1")
            assert events(httpx.post(f"{url}api/answer", json=asking("3"), timeout=60))[-1]["end"]
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0
        finally:
            process.kill()


# In a browser
