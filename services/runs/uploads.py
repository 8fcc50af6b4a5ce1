"""Copies to the mirror during the run: one at a time, in a thread; the next save waits for it."""

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
    """Uploads of a run to its mirror. A copy that fails never ends the run."""

    def __init__(self, mirror: Mirror, folder: RunFolder, note: Note) -> None:
        self._mirror, self._folder = mirror, folder
        self.note = note
        self._what = ""
        self._under_way: Future[None] | None = None

    def begin(self, iteration: int) -> None:
        """Start to copy a checkpoint; the run may go on writing."""
        lines, kept = self._folder.lines_so_far(), list(self._folder.checkpoints())

        def copy() -> None:
            self._mirror.put_files(self._folder)
            self._mirror.put_checkpoint(self._folder, iteration, lines)
            self._mirror.keep_only(kept)

        self._start(f"checkpoint {iteration}", copy)

    def wait(self) -> str | None:
        """Wait for the current copy; return and note why it did not arrive, if it did not."""
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
        said = f"{self._what} did not arrive at {self._mirror.url}: {type(error).__name__}: {error}"
        self.note(said)
        return said

    def finish(self) -> str | None:
        """Copy all that the mirror lacks; return why it did not arrive, if it did not."""
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

        self._start("the run", copy)
        return self.wait()

    def _start(self, what: str, copy: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def attempt() -> None:
            for pause_s in TRIES_AFTER_S:
                time.sleep(pause_s)
                try:
                    copy()
                except Exception as error:  # each file system raises its own
                    failure = error
                else:
                    done.set_result(None)
                    return
            done.set_exception(failure)

        self._what, self._under_way = what, done
        threading.Thread(target=attempt, name="mirror", daemon=True).start()
