"""More or fewer workers of a run that goes on: asked for in its folder, done by its loop."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import DeadlineExceeded, InputError, RunError
from services.commands import scale
from services.runs.folder import RunFolder
from services.training.loop import scaling
from services.training.loop.scaling import Scaling, ask
from tests.fakes import Calls, FakeWorkers
from tests.services.training.loop.test_controller import Loop


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LOOK_S", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that goes on."""
    return RunFolder.open(tmp_path, "run", {"seed": 1}, "auto").path


class Looking:
    """The loop, as far as this goes."""

    def __init__(self, folder: Path, workers: FakeWorkers) -> None:
        self.notes: list[str] = []
        self._scaling = Scaling(folder, workers, self.notes.append)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._is_over.is_set():
            self._scaling.look()
            time.sleep(0.01)

    def __enter__(self) -> "Looking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def calls() -> Iterator[Calls]:
    yield []


def test_what_is_asked_for_is_done_once_and_answered(folder: Path, calls: Calls) -> None:
    with Looking(folder, FakeWorkers(calls)) as loop:
        ask(folder, 3, timeout_s=20)
        ask(folder, 3, timeout_s=20)
        ask(folder, 1, timeout_s=20)

    assert calls == [("scale", 3), ("scale", 3), ("scale", 1)]
    assert loop.notes[0] == "3 rollout workers are requested; the run has 1"
    assert not (folder / scaling.ASKED).exists()


def test_where_no_run_goes_on_nothing_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1")

    with pytest.raises(InputError, match=r"no run is active here; start it with rollout.num_workers=3"):
        scale.run([str(tmp_path), "workers=3"])
    assert not (tmp_path / scaling.ASKED).exists()


def test_workers_that_do_not_come_up(folder: Path, calls: Calls) -> None:
    class Starting(FakeWorkers):
        num_up = property(lambda self: 1, lambda self, count: None)  # type: ignore[assignment]

    class NoRoom(FakeWorkers):
        def scale(self, num_workers: int) -> None:
            pass

    with (
        Looking(folder, Starting(calls)),
        pytest.raises(DeadlineExceeded, match=r"waited 1 s for 2 workers: .*'up': 1"),
    ):
        ask(folder, 2, timeout_s=1)
    with Looking(folder, NoRoom(calls)), pytest.raises(RunError, match=r"the run keeps 1 workers"):
        ask(folder, 2, timeout_s=20)


def test_the_command_asks_the_run_in_this_folder(
    folder: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    with Looking(folder, FakeWorkers(calls)):
        assert scale.run([str(folder), "workers=2"]) == 0
    assert capsys.readouterr().out == f"{folder}: 2 rollout workers up\n"

    with pytest.raises(InputError, match="so it is not a run"):
        scale.run([str(folder.parent), "workers=2"])


@pytest.mark.parametrize(
    "argv", [["runs/x", "workers=0"], ["runs/x", "workers=many"], ["runs/x", "worker=2"]]
)
def test_a_number_is_needed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.run(argv)
    assert "usage: whetstone scale" in capsys.readouterr().err


def test_the_loop_does_it_between_two_rounds_of_its_workers(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    (loop.folder.path / scaling.ASKED).write_text('{"workers": 3}')
    loop.run()

    assert [call for call in loop.calls if call[0] == "scale"] == [("scale", 3)]
    assert [row["workers/up"] for row in loop.folder.rollout_info()] == [3.0] * 4
    assert [row["workers/quarantined"] for row in loop.folder.rollout_info()] == [0.0] * 4
    assert loop.learner.trained == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("written", ["{}", '{"workers": "x"}', '{"workers": true}', "[3]", "{"])
def test_a_request_that_is_none_is_told_removed_and_ends_nothing(
    written: str, folder: Path, calls: Calls
) -> None:
    (folder / scaling.ASKED).write_text(written)
    with Looking(folder, FakeWorkers(calls)) as loop:
        _wait_for_removal(folder)
        ask(folder, 2, timeout_s=20)
    assert len(loop.notes) == 2 and 'expected {"workers": N}, got' in loop.notes[0]
    assert calls == [("scale", 2)]


def _wait_for_removal(folder: Path) -> None:
    until = time.monotonic() + 20
    while (folder / scaling.ASKED).exists() and time.monotonic() < until:
        time.sleep(0.01)


def test_a_request_that_comes_while_another_is_acted_on_is_not_lost(folder: Path, calls: Calls) -> None:
    class Asked(FakeWorkers):
        def scale(self, num_workers: int) -> None:
            super().scale(num_workers)
            if num_workers == 2:
                (folder / scaling.ASKED).write_text('{"workers": 3}')

    run = Scaling(folder, Asked(calls), lambda text: None)
    (folder / scaling.ASKED).write_text('{"workers": 2}')
    for _ in range(2):
        run.look()
        time.sleep(0.03)

    assert calls == [("scale", 2), ("scale", 3)]
    assert not (folder / scaling.ASKED).exists() and not (folder / scaling.TAKEN).exists()
