"""On the path of a run (PYTHONPATH), it lets a test raise an exception in the midst of any process's work.

A file in the folder of WHETSTONE_TEST_RAISE, named after a process's id, holds `file.py:function`: whichever
thread has that on its stack raises `AskedFor` at its next step, and the file is gone.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

FOLDER = os.environ.get("WHETSTONE_TEST_RAISE")
LOOK_S = 0.05


class AskedFor(Exception):
    """By a test."""


def has(frame: FrameType | None, file: str, function: str) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def watch(order: Path) -> None:
    while True:
        time.sleep(LOOK_S)
        if not order.exists():
            continue
        file, _, function = order.read_text().partition(":")
        for thread, frame in sys._current_frames().items():
            if has(frame, file, function):
                order.unlink()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(AskedFor))
                break


if FOLDER:
    threading.Thread(target=watch, args=(Path(FOLDER) / str(os.getpid()),), daemon=True).start()
