"""Copies to the mirror during the run, one at a time, in a thread. The next save waits for the copy."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

from services.runs.folder import RunFolder
from services.runs.mirror import Mirror

TRIES_AFTER_S = (0.0, 2.0, 10.0)
NOTE_S = 30.0
GIVE_UP_S = 3600.0

Note = Callable[[str], None]


class Uploads:
    """Uploads of a run to its mirror. A failed copy never ends the run."""

    def __init__(self, mirror: Mirror, folder: RunFolder, note: Note) -> None:
        self._mirror, self._folder = mirror, folder
        self.note = note
        self._what = ""
        self._under_way: Future[None] | None = None

    def begin(self, iteration: int) -> None:
        """Start to copy a checkpoint. The run may continue to write."""
        lines, kept = self._folder.lines_so_far(), list(self._folder.checkpoints())

        def copy() -> None:
            self._mirror.put_files(self._folder)
            self._mirror.put_checkpoint(self._folder, iteration, lines)
            self._mirror.keep_only(kept)
            self._mirror.put_tokens(self._folder)

        self._start(f"checkpoint {iteration}", copy)

    def wait(self) -> str | None:
        """Wait for the current copy; return and report the reason if it failed."""
        call, self._under_way = self._under_way, None
        since = time.monotonic()
        while call is not None and not wait_for([call], timeout=NOTE_S).done:
            waited_s = time.monotonic() - since
            self.note(f"waiting {waited_s:.0f} s for {self._what} to arrive at {self._mirror.url}")
            if waited_s > GIVE_UP_S:
                return f"{self._what} did not arrive at {self._mirror.url} in {waited_s:.0f} s"
        error = call.exception() if call is not None else None
        if error is None:
            return None
        message = f"{self._what} did not arrive at {self._mirror.url}: {type(error).__name__}: {error}"
        self.note(message)
        return message

    def finish(self) -> str | None:
        """Copy everything that the mirror lacks; return the reason if the copy failed."""
        self.wait()
        folder = self._folder

        def copy() -> None:
            self._mirror.put_files(folder)
            for iteration in folder.checkpoints().keys() - set(self._mirror.complete()):
                self._mirror.put_checkpoint(folder, iteration, folder.lines_so_far())
            for model in (folder.model, folder.best_model):
                if model.exists():
                    self._mirror.put_tree(model, model.name)
            self._mirror.keep_only(folder.checkpoints())
            self._mirror.put_tokens(folder)

        self._start("the run", copy)
        return self.wait()

    def _start(self, what: str, copy: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def attempt() -> None:
            for pause_s in TRIES_AFTER_S:
                time.sleep(pause_s)
                try:
                    copy()
                except Exception as error:  # each file system raises its own errors
                    failure = error
                else:
                    done.set_result(None)
                    return
            done.set_exception(failure)

        self._what, self._under_way = what, done
        threading.Thread(target=attempt, name="mirror", daemon=True).start()
