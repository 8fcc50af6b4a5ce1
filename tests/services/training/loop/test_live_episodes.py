"""A run's episodes as they come: which are written, and what `whetstone watch` makes of the file."""

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from services.commands import watch
from services.runs.folder import RunFolder
from services.runs.json_lines import read_rows
from services.training.loop import live_episodes
from services.training.loop.live_episodes import EACH, LiveEpisodes
from tests.services.runs.report.test_report import CONFIG


def episode(number: int, version: int = 3) -> Rollout:
    turn = Turn((5, 6), (7, 1), "go", (-0.5, -1.0), (version - 1, version), 0.5, observation_text="Where to?")
    prompt = Prompt(f"games/{number}", "A game.")
    return Rollout(number, 0, prompt, (turn, turn), FinishReason.STOP, {"length": 1.0}, {"won": 1.0})


def test_the_first_of_each_split_and_version_are_written(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    log = LiveEpisodes(file)
    log.add([episode(number) for number in range(EACH + 2)], "train")
    log.add([episode(100), replace(episode(101), turns=())], "validation")
    log.add([episode(102, version=4)], "train")
    rows = read_rows(file)
    assert [row["sample_id"] for row in rows] == [
        f"games/{sample}" for sample in (*range(EACH), 100, 101, 102)
    ]
    first = {key: value for key, value in rows[0].items() if key != "turns"}
    assert first == {
        "split": "train",
        "weights": 3,
        "sample_id": "games/0",
        "prompt_text": "A game.",
        "reward": 1.0,
        "reward/length": 1.0,
        "end": "won",
        "environment/won": 1.0,
    }
    assert rows[0]["turns"][0]["read"] == 2 and rows[0]["turns"][0]["written"] == 2


def test_a_file_that_grows_too_large_keeps_its_newer_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_episodes, "MOST_BYTES", 5_000)
    file = tmp_path / "episodes.jsonl"
    log = LiveEpisodes(file)
    for number in range(100):
        log.add([episode(number, version=number)], "train")
        assert file.stat().st_size <= 5_000
    versions = [row["weights"] for row in read_rows(file)]
    assert versions == list(range(100 - len(versions), 100)) and len(versions) > 3


# Following


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path, "run", CONFIG, resume="auto")


def taken(rows: Any, count: int) -> list[str]:
    return [row["sample_id"] for row in itertools.islice(rows, count)]


def test_episodes_are_followed_until_the_run_ends(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    is_running = True
    monkeypatch.setattr(watch, "is_held", lambda path: is_running)
    log = LiveEpisodes(folder.episodes)
    log.add([episode(number) for number in range(5)], "train")
    rows = watch.episodes(folder, last=2)
    assert taken(rows, 2) == ["games/3", "games/4"]
    adding = threading.Timer(0.1, lambda: log.add([episode(5), episode(6)], "train"))
    adding.start()
    assert taken(rows, 2) == ["games/5", "games/6"]
    log.add([episode(7)], "validation")
    is_running = False
    assert taken(rows, 5) == ["games/7"]  # and no more: the run has ended
    assert taken(watch.episodes(folder, last=9, split="validation"), 9) == ["games/7"]
    assert taken(watch.episodes(folder, last=0), 9) == []


def test_half_a_line_waits_and_a_replaced_file_goes_on_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    lines = watch.Lines(file)
    assert lines.new() == []
    file.write_text('{"a": 1}\n{"a"')
    assert lines.new() == [{"a": 1}]
    with file.open("a") as opened:
        opened.write(": 2}\nno JSON\n[3]\n")
    assert lines.new() == [{"a": 2}]
    other = tmp_path / "other"
    other.write_text('{"a": 2}\n')
    other.replace(file)
    assert lines.new() == []
    with file.open("a") as opened:
        opened.write('{"a": 4}\n')
    assert lines.new() == [{"a": 4}]


def test_the_command_prints_episodes_and_refuses_a_run_without_any(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "is_held", lambda path: False)
    with pytest.raises(InputError, match="has no episodes"):
        watch.run([str(folder.path)])
    with pytest.raises(InputError, match="nowhere"):
        watch.run([str(folder.path / "nowhere")])
    LiveEpisodes(folder.episodes).add([episode(1), episode(2)], "train")
    assert watch.run([str(folder.path)]) == 0
    printed = capsys.readouterr().out
    assert "games/2  train, weights 3  won  reward 1" in printed and "games/1" not in printed
    assert "› go" in printed and "Where to?" in printed
