"""A checkpoint is complete, or it is not there."""

from pathlib import Path

import pytest

from services import checkpoints
from services.run_folder import RunFolder


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
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        checkpoints.save(folder, 4, breaks, {"iteration": 4})

    assert checkpoints.latest(folder) == (2, folder.checkpoint(2))
    assert list(folder.checkpoints()) == [2]


def test_what_broke_off_earlier_does_not_get_into_the_next(folder: RunFolder) -> None:
    unfinished = folder.checkpoint(4).with_name("4.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "left.over").write_text("old")

    path = save(folder, 4)

    assert sorted(file.name for file in path.iterdir()) == ["loop.json", "policy.bin"]
    assert not unfinished.exists()


def test_one_of_an_earlier_start_is_replaced(folder: RunFolder) -> None:
    save(folder, 4, content="first")
    path = save(folder, 4, content="second")

    assert (path / "policy.bin").read_text() == "second"
