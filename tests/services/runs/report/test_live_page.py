"""The page of `whetstone watch --web`: over HTTP, and in a real browser."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.errors import InputError
from services.commands import watch
from services.runs.folder import RunFolder
from services.runs.report import live_page
from services.runs.report.live_index import LiveIndex
from services.runs.report.live_page import live_app
from services.terminal.web_pages import listen
from tests.browser import browser_tab
from tests.chat_server import running as running_at
from tests.services.runs.report.test_report import CONFIG
from tests.until import served_until_ctrl_c

EVIL = "<script>document.title='evil'</script><img src=x onerror=document.title='evil'>"
TOKEN = "a-token-of-enough-letters"


def seen(*written: Any, **more: Any) -> dict[str, Any]:
    return {"read": ["What", " is?"], "written": list(written), "logprob": [-1.5] * len(written), **more}


def row(iteration: int, group: int, reward: float, *tokens: Any) -> dict[str, Any]:
    count = len(tokens)
    numbers = {"ratio": [1.5] * count, "advantage": [-0.5] * count, "loss": [1] * (count - 1) + [0]}
    turn = {"observation": "?", "answer": "!", "read": 2, "written": count, "reward": reward}
    return {
        "iteration": iteration,
        "split": "train",
        "group": group,
        "sample_id": f"p/{group}",
        "prompt_text": f"What is {group}?",
        "reward": reward,
        "length": count,
        "end": "ended",
        "turns": [turn | {"seen": seen(*tokens, **numbers)}],
    }


def live(weights: int, split: str, reward: float, sample: str) -> dict[str, Any]:
    turns = [{"observation": "Where to?", "answer": f"go {EVIL}", "read": 3, "written": 4, "reward": 1.0}] * 2
    return {
        "split": split,
        "weights": weights,
        "sample_id": sample,
        "prompt_text": "A game.",
        "reward": reward,
    } | {
        "turns": turns,
        "end": "won",
    }


def write(file: Path, *rows: Any, rest: str = "") -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in rows) + rest)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path, "run", CONFIG, resume="auto")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    state = {"now": False}
    monkeypatch.setattr(live_page, "is_held", lambda path: state["now"])
    return state


@contextmanager
def serving(folder: RunFolder, token: str | None = None) -> Iterator[str]:
    with listen("127.0.0.1", 0, token) as door, running_at(live_app(folder, door.host, token), door.socket):
        yield door.url


def names(index: LiveIndex, *filters: Any) -> list[tuple[int, str]]:
    index.look()
    prompt, low, high = filters or ("", None, None)
    return [(entry.iteration, entry.sample) for entry in index.chosen(prompt, low, high)]


# The index


def test_new_lines_are_read_and_half_ones_wait(folder: RunFolder) -> None:
    index = LiveIndex(folder)
    assert names(index) == []
    write(folder.tokens / "1.jsonl", row(1, 4, 0.5, "a"), row(1, 4, 0.75, "b"))
    write(
        folder.episodes,
        live(0, "validation", 1.0, "g/1"),
        live(1, "train", 1.0, "g/2"),
        rest='{"split": "tra',
    )
    assert names(index) == [(2, "g/2"), (1, "p/4"), (1, "p/4"), (0, "g/1")]
    with folder.episodes.open("a") as opened:
        opened.write('in"}\nno JSON\n[1]\n{"turns": 3}\n' + json.dumps(live(1, "train", 0.0, "g/3")) + "\n")
    assert names(index)[:2] == [(2, "g/2"), (2, "g/3")]
    write(folder.tokens / "2.jsonl", row(2, 5, 0.0, "c"))  # training's own file now has that iteration
    assert names(index) == [(2, "p/5"), (1, "p/4"), (1, "p/4"), (0, "g/1")]
    write(folder.tokens / "1.jsonl", row(1, 9, 0.5, "a"))  # written again, after a resume
    (folder.tokens / "2.jsonl").unlink()
    folder.episodes.unlink()
    assert names(index) == [(1, "p/9")]


def test_a_damaged_file_loses_only_its_damaged_lines(folder: RunFolder) -> None:
    odd = [row(1, 1, 0.5, "a") | {"reward": "much"}, row(1, 1, 0.5, "a") | {"turns": ["so"]}, {"a": 1}, 7]
    nested = "[" * 100_000 + "\n" + '{"turns": NaN}\n' + "\ufffe\n"
    write(folder.tokens / "1.jsonl", *odd, rest=nested + json.dumps(row(1, 2, float("nan"), "b")) + "\n")
    (folder.tokens / "more.jsonl").write_bytes(b"\xff\xfe\x00\n\n")
    assert names(LiveIndex(folder)) == [(1, "p/2")]


def test_filters_by_reward_and_prompt(folder: RunFolder) -> None:
    rows = [row(1, 10, 0.0, "a"), row(1, 11, 0.5, "a"), row(1, 2, 1.0, "a") | {"reward": None}]
    write(folder.tokens / "1.jsonl", *rows)
    index = LiveIndex(folder)
    assert names(index, "IS 1", None, None) == [(1, "p/10"), (1, "p/11")]
    assert names(index, "p/2", None, None) == [(1, "p/2")]
    assert names(index, "", 0.5, None) == [(1, "p/11")] and names(index, "", None, 0.0) == [(1, "p/10")]
    assert names(index, "", 0.1, 0.2) == []


# Over HTTP


def test_pages_of_ten_thousand_episodes(folder: RunFolder, running: dict[str, bool]) -> None:
    for iteration in range(1, 626):
        write(folder.tokens / f"{iteration}.jsonl", *(row(iteration, n // 4, n / 16, "a") for n in range(16)))
    with serving(folder) as url:
        first = httpx.get(f"{url}api/episodes", timeout=60).json()
        assert (first["all"], first["total"], first["newest"]) == (10_000, 10_000, 625)
        assert len(first["episodes"]) == 50 and first["running"] is False
        last = httpx.get(f"{url}api/episodes", params={"offset": 9_990, "limit": 200}, timeout=60).json()
        assert [episode["iteration"] for episode in last["episodes"]] == [1] * 10
        assert last["episodes"][-1]["reward"] == 15 / 16
        high = httpx.get(f"{url}api/episodes", params={"low": 0.9}, timeout=60).json()
        assert (high["all"], high["total"]) == (10_000, 625)
        for wrong in ({"limit": 201}, {"offset": -1}, {"low": "nan"}, {"prompt": "a" * 501}):
            assert httpx.get(f"{url}api/episodes", params=wrong).status_code == 422


def test_a_group_comes_whole_and_a_lost_one_is_told(folder: RunFolder, running: dict[str, bool]) -> None:
    write(
        folder.tokens / "3.jsonl",
        row(3, 1, 0.0, "a"),
        row(3, 2, 0.5, EVIL, ["<eos>"]),
        row(3, 2, 1.0, "ü", ""),
    )
    write(folder.episodes, live(3, "validation", 1.0, "g/1"))
    with serving(folder) as url:
        listed = httpx.get(f"{url}api/episodes").json()["episodes"]
        assert [(episode["sample"], episode["numbered"]) for episode in listed] == [
            *(("p/1", True), ("p/2", True), ("p/2", True), ("g/1", False))
        ]
        group = httpx.get(f"{url}api/group", params={"id": listed[2]["id"]}).json()["episodes"]
        assert [episode["turns"][0]["seen"]["written"] for episode in group] == [[EVIL, ["<eos>"]], ["ü", ""]]
        alone = httpx.get(f"{url}api/group", params={"id": listed[3]["id"]}).json()["episodes"]
        assert len(alone) == 1 and len(alone[0]["turns"]) == 2
        for gone in ("3@1", "../../etc/passwd@0", ""):
            assert httpx.get(f"{url}api/group", params={"id": gone}).status_code == 404
        (folder.tokens / "3.jsonl").unlink()
        lost = httpx.get(f"{url}api/group", params={"id": listed[2]["id"]})
        assert lost.status_code == 404 and "no longer" in lost.json()["detail"]


def test_texts_without_utf_8_and_numbers_that_are_too_large_hide_no_other(
    folder: RunFolder, running: dict[str, bool]
) -> None:
    halved = row(1, 1, 0.5, "\ud800") | {"prompt_text": "\udfff?"}
    lines = [json.dumps(halved), *(json.dumps(row(1, 2, 0.25, "b")) for _ in range(2))]
    lines[1] = lines[1].replace('"length": 1', '"length": 1e999')
    lines[2] = lines[2].replace('"reward": 0.25', '"reward": 1e999')
    write(folder.tokens / "1.jsonl", rest="\n".join([*lines, ""]))
    with serving(folder) as url:
        shown = httpx.get(f"{url}api/episodes").json()["episodes"]
        assert [(episode["prompt"], episode["reward"]) for episode in shown] == [
            ("\udfff?", 0.5),
            ("What is 2?", None),
        ]
        (first,) = httpx.get(f"{url}api/group", params={"id": shown[0]["id"]}).json()["episodes"]
        assert first["turns"][0]["seen"]["written"] == ["\ud800"]


def test_the_page_fetches_nothing_and_lets_nobody_else_in(
    folder: RunFolder, running: dict[str, bool]
) -> None:
    write(folder.tokens / "1.jsonl", row(1, 1, 0.5, "a"))
    with serving(folder) as url:
        page, again = httpx.get(url), httpx.get(url)
        policy = page.headers["content-security-policy"]
        nonce = re.findall("'nonce-([^']+)'", policy)
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert nonce[0] == nonce[1] not in again.text and page.text.count(f'nonce="{nonce[0]}"') == 2
        assert "://" not in page.text and "innerHTML" not in page.text
        assert httpx.get(f"{url}api/episodes", headers={"Host": "evil.example"}).status_code == 400
        assert httpx.get(f"{url}api/episodes", headers={"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(f"{url}openapi.json").status_code == 404
    with serving(folder, TOKEN) as url:
        assert httpx.get(url).status_code == 200
        for path in ("api/episodes", "api/group?id=1@0"):
            assert httpx.get(url + path).status_code == 401
            known = httpx.get(url + path, headers={"Authorization": f"Bearer {TOKEN}"})
            assert known.status_code == 200


def test_the_command_serves_until_ctrl_c(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHETSTONE_TOKEN", raising=False)
    with pytest.raises(InputError, match="lets others in"):
        watch.run([str(folder.path), "--web", "--host", "0.0.0.0", "--port", "0"])
    with served_until_ctrl_c("watch", str(folder.path), "--web") as url:
        answer = httpx.get(f"{url}/api/episodes", timeout=60).json()
        state = (answer["name"], answer["all"], answer["running"])
        assert state == ("run", 0, True)  # this process holds it


# In a browser


@pytest.fixture
def page() -> Iterator[Any]:
    with browser_tab() as tab:
        yield tab


def test_a_group_in_the_browser(folder: RunFolder, running: dict[str, bool], page: Any) -> None:
    write(
        folder.tokens / "1.jsonl",
        row(1, 1, 0.5, EVIL, "\u202eb", "\n", ["<eos>"]),
        row(1, 1, 1.0, "<eos>", "é"),
    )
    write(folder.episodes, live(0, "validation", 1.0, "g/1"))
    with serving(folder) as url:
        page.goto(url)
        page.locator("#list button").first.click()
        page.wait_for_selector("article.chosen")
        assert page.locator("article").count() == 2
        tokens = page.locator("article").first.locator(".written .t")
        assert tokens.all_text_contents() == [EVIL, "⟨U+202e⟩b", "↵\n", "<eos>"]
        assert page.locator(".written .special").all_text_contents() == [
            "<eos>"
        ]  # the text that looks so is none
        colour = "el => getComputedStyle(el).backgroundColor"
        by_kind = {}
        for kind in ("logprob", "ratio", "advantage", "loss"):
            page.check(f"input[value={kind}]")
            by_kind[kind] = tokens.first.evaluate(colour)
        assert by_kind["logprob"] == by_kind["advantage"] != by_kind["ratio"] != by_kind["loss"]
        assert page.locator(".left-out").count() >= 2 and "left out" in page.text_content("#legend")
        page.locator("#list button").nth(2).click()
        page.wait_for_selector("text=Evaluations keep no numbers of tokens.")
        assert page.locator(".written").first.text_content() == f"go {EVIL}"
        assert page.title() == "run: episodes"


def test_a_run_in_progress_in_the_browser(folder: RunFolder, running: dict[str, bool], page: Any) -> None:
    running["now"] = True
    with serving(folder, TOKEN) as url:
        page.goto(url)
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.wait_for_selector("text=Waiting for the first iteration.")
        write(folder.tokens / "1.jsonl", *(row(1, n, n / 64, "a") for n in range(64)))
        page.wait_for_selector("text=1–50 of 64")
        page.click("#older")
        page.wait_for_selector("text=51–64 of 64")
        page.fill("#low", "0.9")
        page.wait_for_selector("text=1–6 of 6")
        page.fill("#low", "2")
        page.wait_for_selector("text=No episode passes the filter.")
        running["now"] = False
        page.wait_for_selector("#state:not(.running)")
        assert page.text_content("#state") == "not running · iteration 1 · 64 episodes"
