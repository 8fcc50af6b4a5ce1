"""A command in the caller's own process: its errors are raised, and the process stays as it was."""

import asyncio
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whetstone
from services.runs import claim
from services.runs.tracking.console import open_console
from services.runs.tracking.run_log import log_to
from services.terminal.interrupts import Interrupted, StopRequest, give_up, on_interruption
from whetstone.here import command_here, run_here, why_not_here
from whetstone.objects import Objects

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def here(run: Callable[[], Any]) -> Any:
    return run_here(["train", "seed=1"], Objects(), run)


def state() -> dict[str, Any]:
    import numpy as np
    import torch

    root = logging.getLogger()
    return {
        "variables": dict(os.environ),
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "handlers": [*root.handlers, *logging.getLogger("ray").handlers],
        "levels": (root.level, logging.getLogger("ray").level),
        "records": logging.getLogRecordFactory(),
        "streams": (sys.stdout, sys.stderr, sys.argv),
        "paths": (list(sys.path), list(sys.meta_path)),
        "loop": asyncio.get_event_loop_policy().get_event_loop(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "torch": (torch.get_rng_state().tolist(), torch.get_num_threads()),
    }


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Set the main thread's loop, as a script may do before it calls Whetstone."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


@pytest.mark.usefixtures("loop")
def test_whatever_a_command_changes_is_restored_however_it_ends(tmp_path: Path) -> None:
    import numpy as np
    import torch

    before = state()

    def changes() -> None:
        os.environ["WHETSTONE_TEST"], os.environ["HOME"] = "1", "/nowhere"
        os.chdir(tmp_path)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        claim.lock(tmp_path)
        log_to(tmp_path / "log.txt", open_console())
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        sys.path.insert(0, "/nowhere")
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        torch.set_num_threads(before["torch"][1] + 1)
        asyncio.run(asyncio.sleep(0))  # leaves no loop
        assert sys.argv[1:] == ["train", "seed=1"] and type(sys.stdout).__name__ == "GuardedStream"
        raise ValueError("no such luck")

    with pytest.raises(whetstone.RunError, match="unexpected ValueError: no such luck") as caught:
        here(changes)
    assert isinstance(caught.value.__cause__, ValueError)
    assert state() == before
    assert not claim.is_held(tmp_path)
    assert "no such luck" in (tmp_path / "log.txt").read_text()  # with its traceback
    assert here(lambda: 3) == 3 and state() == before


def test_an_input_error_is_raised_as_it_is() -> None:
    def refuses() -> None:
        raise whetstone.InputError("seed: got a text") from KeyError("cause")

    with pytest.raises(whetstone.InputError, match=r"^seed: got a text$") as caught:
        here(refuses)
    assert isinstance(caught.value.__cause__, KeyError)


def send(number: int, after_s: float = 0.3) -> None:
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start()


def test_ctrl_c_lets_the_run_save_and_interrupts_the_caller() -> None:
    saved = []

    def loop() -> None:
        stop = StopRequest()
        stop.hold()
        send(signal.SIGINT)
        try:
            stop.wait()
        except Interrupted:
            saved.append("whole")
            raise
        finally:
            stop.restore()

    with pytest.raises(KeyboardInterrupt):
        here(loop)
    assert saved == ["whole"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_request_to_end_the_process_reaches_it_when_the_run_has_ended() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            here(lambda: (send(signal.SIGTERM), time.sleep(10)))
        assert heard == [signal.SIGTERM]

        def saves() -> str:
            stop = StopRequest()
            stop.hold()
            send(signal.SIGTERM)
            with pytest.raises(Interrupted):
                stop.wait()
            stop.restore()
            return "saved"

        assert here(saves) == "saved" and heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_request_to_end_reaches_the_process_although_the_run_fails() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))

    def fails() -> None:
        send(signal.SIGTERM)
        try:
            time.sleep(10)
        except KeyboardInterrupt:
            raise ValueError("while it saved") from None

    try:
        with pytest.raises(whetstone.RunError, match="while it saved"):
            here(fails)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_ends_a_command_of_its_own_is_a_run_error_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def dies() -> None:
        claim.lock(tmp_path)
        log_to(tmp_path / "log.txt", open_console())
        on_interruption(lambda: "checkpoint 4 is whole")
        threading.Timer(0.3, give_up, ("Ray's raylet died",)).start()
        time.sleep(10)

    with pytest.raises(whetstone.RunError, match=r"^Ray's raylet died; checkpoint 4 is whole$"):
        here(dies)
    assert "stopped: Ray's raylet died; checkpoint 4 is whole" in (tmp_path / "log.txt").read_text()
    assert "interrupted" not in capfd.readouterr().err


def test_arguments_that_a_command_refuses_end_no_script() -> None:
    with pytest.raises(whetstone.InputError, match=r"^whetstone score: got arguments that it does not take$"):
        command_here(["score", "-x"], Objects())
    with pytest.raises(whetstone.RunError, match=r"^unexpected SystemExit: enough$"):
        here(lambda: sys.exit("enough"))


def test_a_deleted_folder_and_a_module_that_fails_are_no_riddles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "services.cli", None)  # its import fails
    with pytest.raises(whetstone.RunError, match=r"ModuleNotFoundError: .*services.cli"):
        here(lambda: 1)
    monkeypatch.undo()

    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert here(lambda: 3) == 3


def test_an_edited_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helpers_of_mine").mkdir()
    (tmp_path / "helpers_of_mine/__init__.py").write_text("")
    (tmp_path / "mine.py").write_text(
        "from helpers_of_mine import values\ndef own(samples): return [values.ONE for _ in samples]\n"
    )
    for graders, expected in (("mine.py:own", 1.0), ("mine.py:own", 2.25), ("mine:own", 3.125)):
        (tmp_path / "helpers_of_mine/values.py").write_text(f"ONE = {expected}\n")
        assert whetstone.score(graders, ["a"]).metrics == {"own": expected}
        assert not [name for name in sys.modules if name.partition(".")[0] in ("mine", "helpers_of_mine")]

    (tmp_path / "mine.py").write_text("def own(samples): return [7.0 for _ in samples]\n")
    assert whetstone.score("mine.py:own", ["a"]).metrics == {"own": 7.0}
    (tmp_path / "mine.py").write_text("def own(samples): return [8.0 for _ in samples]\n")  # as long, as new
    assert whetstone.score("mine.py:own", ["a"]).metrics == {"own": 8.0}

    import helpers_of_mine.values as kept

    whetstone.score("mine.py:own", ["a"])
    assert sys.modules["helpers_of_mine.values"] is kept  # the caller's own


def test_loops_run_inside_of_a_notebooks_loop() -> None:
    async def one() -> int:
        return 1

    async def cell() -> tuple[int, bool]:
        loop = asyncio.get_running_loop()
        return here(lambda: asyncio.run(one())), asyncio.get_running_loop() is loop

    assert asyncio.run(cell()) == (1, True)


def test_the_reasons_against_this_process_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(why_not_here()))
    thread.start(), thread.join()
    assert "not the main thread" in reasons[0]

    monkeypatch.setattr("whetstone.here.are_names_ours", lambda: False)
    assert "names of Whetstone's" in why_not_here()


def test_a_refused_start_leaves_nothing_and_says_the_same_in_both_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": str(number)} for number in range(20)]
    messages = []
    for in_process in (True, False):
        with pytest.raises(whetstone.InputError, match="nowhere") as caught:
            whetstone.train(
                model__path="nowhere",
                task=rows,
                reward=lambda samples: [1.0 for _ in samples],
                in_process=in_process,
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not any((tmp_path / "runs").glob("*"))
