"""A checkpoint is complete, or it is not there; and a damaged one is no checkpoint."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from contracts.errors import DiskFull, InputError
from services.runs import checkpoints
from services.runs.checksums import CHECKSUMS
from services.runs.folder import RunFolder


def write(folder: str, content: str = "weights") -> None:
    (Path(folder) / "policy.bin").write_text(content)


def save(folder: RunFolder, iteration: int, keep: int = 2, content: str = "weights") -> Path:
    state = {"iteration": iteration}
    saved = checkpoints.save(folder, iteration, lambda path: write(path, content), state)
    checkpoints.forget(folder, keep)
    return saved


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_what_is_saved_is_found_again(folder: RunFolder) -> None:
    assert checkpoints.latest(folder) is None
    path = save(folder, 4)

    assert checkpoints.latest(folder) == (4, path)
    assert checkpoints.read_state(path) == {"iteration": 4}
    assert (path / "policy.bin").read_text() == "weights"


def test_the_newest_is_the_largest_number_not_the_last_name(folder: RunFolder) -> None:
    for iteration in (8, 9, 10):
        save(folder, iteration, keep=5)

    assert checkpoints.latest(folder) == (10, folder.checkpoint(10))


def test_only_the_newest_are_kept(folder: RunFolder) -> None:
    for iteration in (2, 4, 6, 8):
        save(folder, iteration, keep=2)

    assert list(folder.checkpoints()) == [6, 8]


def test_one_that_broke_off_is_not_there_and_the_one_before_it_is(folder: RunFolder) -> None:
    save(folder, 2)

    def breaks(path: str) -> None:
        write(path, "half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFull, match="checkpoints/4 could not be written: no space left on device"):
        checkpoints.save(folder, 4, breaks, {"iteration": 4})

    assert checkpoints.latest(folder) == (2, folder.checkpoint(2))
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]


def test_what_broke_off_earlier_does_not_get_into_the_next(folder: RunFolder) -> None:
    unfinished = folder.checkpoint(4).with_name("4.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "left.over").write_text("old")

    path = save(folder, 4)

    assert sorted(file.name for file in path.iterdir()) == ["checksums.json", "loop.json", "policy.bin"]
    assert not unfinished.exists()


def test_one_of_an_earlier_start_is_replaced(folder: RunFolder) -> None:
    save(folder, 4, content="first")
    path = save(folder, 4, content="second")

    assert (path / "policy.bin").read_text() == "second"


# Damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "missing": ("policy.bin", Path.unlink, "policy.bin is missing"),
    "cut": ("policy.bin", cut, "policy.bin has 6 bytes; 7 were written"),
    "flipped": ("policy.bin", flip, "policy.bin is not what was written: its SHA-256 differs"),
    "state": ("loop.json", cut, "loop.json has 18 bytes; 19 were written"),
    "checksums": (CHECKSUMS, lambda path: path.write_text("{"), "checksums.json is damaged: it is not JSON"),
    "no checksums": (CHECKSUMS, lambda path: path.write_text("[]"), "checksums.json is damaged: expected"),
}


@pytest.mark.parametrize(("file", "spoil", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_is_set_aside_by_name_and_the_one_before_it_is_used(
    folder: RunFolder, file: str, spoil: Callable[[Path], None], message: str
) -> None:
    save(folder, 2)
    path = save(folder, 4)
    spoil(path / file)
    left = sorted(child.name for child in path.iterdir())
    notes: list[str] = []

    assert checkpoints.newest_whole(folder, notes.append) == (2, folder.checkpoint(2))

    assert list(folder.checkpoints()) == [2]
    (aside,) = checkpoints.damaged(folder)
    assert sorted(child.name for child in aside.iterdir()) == left  # nothing of it is lost
    (note,) = notes
    assert note.startswith(f"{path} is damaged: {message}") and f"now called {aside.name}" in note


def test_what_is_found_whole_is_not_read_twice_but_looked_at(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(folder, 4)
    assert not checkpoints.damage(path)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "damage_in", lambda path: pytest.fail("read again"))
        assert not checkpoints.damage(path)

    cut(path / "policy.bin")
    assert checkpoints.damage(path)


def test_where_none_is_whole_nothing_begins_anew(folder: RunFolder) -> None:
    for iteration in (2, 4):
        cut(save(folder, iteration) / "policy.bin")

    for _ in range(2):  # nor does the next start
        with pytest.raises(
            InputError, match=r"has no whole checkpoint: 2\.damaged-.*, 4\.damaged-.* run_name="
        ):
            checkpoints.newest_whole(folder, lambda text: None)


def test_where_there_has_been_none_there_is_none(folder: RunFolder) -> None:
    assert checkpoints.newest_whole(folder, pytest.fail) is None


def test_a_damaged_one_is_neither_counted_nor_forgotten(folder: RunFolder) -> None:
    save(folder, 2)
    cut(save(folder, 4) / "policy.bin")
    checkpoints.newest_whole(folder, lambda text: None)

    for iteration in (4, 6, 8):
        save(folder, iteration, keep=2)

    assert list(folder.checkpoints()) == [6, 8]
    assert len(checkpoints.damaged(folder)) == 1


def without_checksums(folder: RunFolder, iteration: int) -> Path:
    """As earlier versions saved them."""
    path = save(folder, iteration, keep=5)
    save_file({"w": torch.zeros(8)}, path / "policy.safetensors")
    (path / CHECKSUMS).unlink()
    return path


def test_an_old_one_without_checksums_is_used_and_that_is_said_once(folder: RunFolder) -> None:
    path, notes = without_checksums(folder, 4), list[str]()

    for _ in range(2):
        assert checkpoints.newest_whole(folder, notes.append) == (4, path)

    assert notes == [f"{path} was saved without checksums: only the form of its files could be checked"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("policy.safetensors", "policy.safetensors is cut short: 95 bytes, expected 96"),
        ("loop.json", "loop.json is damaged: it is not JSON"),
    ],
)
def test_of_an_old_one_the_form_of_its_files_is_checked(folder: RunFolder, file: str, message: str) -> None:
    without_checksums(folder, 2)
    cut(without_checksums(folder, 4) / file)
    notes: list[str] = []

    assert checkpoints.newest_whole(folder, notes.append) == (2, folder.checkpoint(2))
    assert message in notes[0]


def test_one_without_the_loops_state_is_damaged(folder: RunFolder) -> None:
    (without_checksums(folder, 4) / "loop.json").unlink()
    assert list(map(str, checkpoints.damage(folder.checkpoint(4)))) == ["loop.json is missing"]


def test_a_damaged_best_one_is_set_aside_too(folder: RunFolder) -> None:
    for iteration in (2, 4):
        save(folder, iteration)
    folder.best_file.write_text(json.dumps({"iteration": 2}))
    checkpoints.set_damaged_best_aside(folder, pytest.fail)
    cut(folder.checkpoint(2) / "policy.bin")

    checkpoints.set_damaged_best_aside(folder, lambda text: None)

    assert list(folder.checkpoints()) == [4]
    folder.best_file.write_text("{")
    checkpoints.set_damaged_best_aside(folder, pytest.fail)  # it is written anew with the next one


def test_what_a_killed_start_left_is_removed_and_told(folder: RunFolder) -> None:
    save(folder, 2)
    left = [
        folder.path / name
        for name in ("model.unfinished", "checkpoints/4.unfinished", "checkpoints/1.forgotten")
    ]
    for path in left:
        path.mkdir()
        (path / "half").write_text("x")
    notes: list[str] = []

    checkpoints.remove_leftovers(folder, notes.append)

    assert not any(path.exists() for path in left)
    assert len(notes) == 3 and all(any(str(path) in note for note in notes) for path in left)
    assert list(folder.checkpoints()) == [2]
