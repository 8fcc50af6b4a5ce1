"""Files of an iteration's episodes with numbers of their tokens."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.clients import TokenNumbers
from contracts.errors import DiskFull
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.settings import ModelSettings
from services.data.tokens.token_pieces import Piece, TokenPieces
from services.runs.folder import RunFolder
from services.runs.json_lines import read_rows
from services.training.loop import seen_tokens
from services.training.loop.seen_tokens import EACH, SeenTokens
from tests.services.runs.report.test_report import CONFIG


def pieces(tokens: Sequence[int]) -> list[Piece]:
    return [str(token) for token in tokens]


def turn(*tokens: int, role: str = "") -> Turn:
    return Turn((1, 2), tokens, "so", (-1.0,) * len(tokens), (0,) * len(tokens), 0.5, role=role)


def episode(lease: int, *turns: Turn) -> Rollout:
    return Rollout(lease, lease // 2, Prompt("p", "What?"), turns or (turn(5, 6),), FinishReason.STOP)


def numbers(lease: int, count: int, role: str = "", old: float = -1.0) -> TokenNumbers:
    places = [float(place) for place in range(count)]
    return TokenNumbers(lease, role, count, [old] * count, places, [1.0] * (count - 1) + [0.0])


def test_each_turn_has_its_tokens_and_their_numbers(tmp_path: Path) -> None:
    two = episode(3, turn(5, 6), turn(7))
    SeenTokens(tmp_path, pieces).write(4, [two], [numbers(3, 3, old=-1.0 + math.log(2))])
    (row,) = read_rows(tmp_path / "4.jsonl")
    assert (row["iteration"], row["group"], row["length"], row["reward"]) == (4, 1, 3, 1.0)
    first, second = (fields["seen"] for fields in row["turns"])
    assert (first["read"], first["written"], second["written"]) == (["1", "2"], ["5", "6"], ["7"])
    assert first["logprob"] == [-1.0, -1.0] and first["ratio"] == [2.0, 2.0]
    assert (first["advantage"], second["advantage"]) == ([0.0, 1.0], [2.0])
    assert (first["loss"], second["loss"]) == ([1, 1], [0])


def test_roles_take_their_own_numbers(tmp_path: Path) -> None:
    debate = episode(1, turn(5, role="pro"), turn(6, 7, role="con"), turn(8, role="pro"))
    SeenTokens(tmp_path, pieces).write(1, [debate], [numbers(1, 2, "con"), numbers(1, 2, "pro")])
    (row,) = read_rows(tmp_path / "1.jsonl")
    assert [fields["seen"]["advantage"] for fields in row["turns"]] == [[0.0], [0.0, 1.0], [1.0]]


def test_without_numbers_of_exactly_these_tokens_there_are_none(tmp_path: Path) -> None:
    log = SeenTokens(tmp_path, pieces)
    log.write(
        1, [episode(1), episode(2)], [numbers(1, 1), numbers(7, 2)]
    )  # a part of one; another iteration's
    for row in read_rows(tmp_path / "1.jsonl"):
        assert set(row["turns"][0]["seen"]) == {"read", "written", "logprob"}


def test_episodes_with_numbers_come_first_and_files_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SeenTokens(tmp_path, pieces)
    rollouts = [episode(lease) for lease in range(40, 0, -1)]
    log.write(1, rollouts, [numbers(30, 2)])
    leases = [row["group"] for row in read_rows(tmp_path / "1.jsonl")]
    assert leases == [15, *(lease // 2 for lease in range(1, EACH))]
    monkeypatch.setattr(seen_tokens, "MOST_READ", 1)
    monkeypatch.setattr(seen_tokens, "MOST_PIECES", 2)
    log.write(2, [episode(1, turn(5, 6), turn(7))], [])
    (row,) = read_rows(tmp_path / "2.jsonl")
    assert row["turns"][0]["seen"]["read"] == ["2"] and "seen" not in row["turns"][1]
    monkeypatch.setattr(seen_tokens, "MOST_BYTES", 2000)
    for iteration in range(3, 9):
        log.write(iteration, [episode(1)], [])
    left = sorted(int(file.stem) for file in tmp_path.glob("*.jsonl"))
    assert 1 < len(left) < 8 and left[-1] == 8 and left == list(range(left[0], 9))


def test_a_run_that_goes_back_forgets_the_iterations_behind(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", CONFIG, resume="auto")
    log = SeenTokens(folder.tokens, pieces)
    for iteration in (1, 2, 10):
        log.write(iteration, [episode(1)], [])
    folder.truncate_after(2)
    assert sorted(file.name for file in folder.tokens.iterdir()) == ["1.jsonl", "2.jsonl"]


class Bytes:
    """A tokenizer of bytes, in which token 300 is special."""

    all_special_ids = (300,)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        parts = [b"<eos>" if token == 300 else bytes([token]) for token in tokens]
        return b"".join(parts).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.data.tokens.token_pieces.load_tokenizer", lambda model: Bytes())
    decoder = TokenPieces(ModelSettings(path="bytes"))
    assert decoder([*b"ab", *"日".encode(), 300, *b"<eos>"[:2]]) == [
        *("a", "b", "", "", "日", ["<eos>"], "<", "e")
    ]
    assert decoder([*"é".encode(), 0xFF, 65]) == ["", "é", "\N{REPLACEMENT CHARACTER}", "A"]


def test_lease_order_does_not_depend_on_arrival(tmp_path: Path) -> None:
    rollouts = [replace(episode(lease), group=lease) for lease in (3, 1, 2)]
    SeenTokens(tmp_path, pieces).write(1, rollouts, [])
    assert [row["group"] for row in read_rows(tmp_path / "1.jsonl")] == [1, 2, 3]


def test_a_file_is_written_while_the_run_goes_on(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(tokens: Sequence[int]) -> list[Piece]:
        begun.set()
        assert may_end.wait(60)
        return pieces(tokens)

    log = SeenTokens(tmp_path, slow)
    log.add(1, [episode(1)], [])
    assert begun.wait(60) and not (tmp_path / "1.jsonl").exists()
    may_end.set()
    log.add(2, [episode(1)], [])  # which waits for the first
    assert len(read_rows(tmp_path / "1.jsonl")) == 1


def test_a_failure_is_returned_once_and_ends_the_files_but_not_the_run(tmp_path: Path) -> None:
    log = SeenTokens(tmp_path / "no" / "folder", pieces)
    assert log.add(1, [episode(1)], []) is None
    assert str(log.add(2, [episode(1)], [])).startswith("FileNotFoundError: ")
    (tmp_path / "no").mkdir()
    assert [log.add(number, [episode(1)], []) for number in (3, 4)] == [None, None]
    assert not (tmp_path / "no" / "folder").exists()


def test_a_full_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> Path:
        raise DiskFull("no room")

    monkeypatch.setattr(seen_tokens, "write_atomically", full)
    log = SeenTokens(tmp_path, pieces)
    log.add(1, [episode(1)], [])
    with pytest.raises(DiskFull):
        log.add(2, [episode(1)], [])
