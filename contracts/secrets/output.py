"""Guards of all that a process prints or logs: standard output, standard error and every logger.

print, rich, warnings, tracebacks ──▶ sys.stdout  ──▶ hide     known values only: the output may be data
                                      sys.stderr  ──▶ redact   known values, and what looks like a secret
logging, of any library           ──▶ each record ──▶ redact   message and traceback, before any handler

`services.cli` guards the command's process, and each actor its own.
"""

import contextlib
import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from contracts.errors import RunError, WhetstoneError
from contracts.secrets.redaction import redact
from contracts.secrets.secret_values import begins_secret, hide_pieces, remember_in


class GuardedStream(io.TextIOBase):
    """A stream that sends its lines through `clean` to another stream.

    A line is written when it ends or is flushed. A flush holds back last characters that may begin a
    secret, until the next characters decide it.
    """

    def __init__(self, stream: TextIO, clean: Callable[[str], str]) -> None:
        self.stream, self._clean = stream, clean
        self._waiting = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            whole, end, rest = (self._waiting + text).rpartition("\n")
            self._waiting = rest
            if end:
                self.stream.write(self._clean(whole) + end)
            if "\r" in rest:  # a redrawn line is shown at once
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            held = begins_secret(self._waiting)
            self._write_out(len(self._waiting) - held)
            self.stream.flush()

    def finish(self) -> None:
        """Write all waiting text."""
        with self._lock:
            self._write_out(len(self._waiting))
            self.stream.flush()

    def _write_out(self, length: int) -> None:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        if text:
            self.stream.write(self._clean(text))

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.stream.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def say(text: str) -> None:
    """Print a line for people on standard output, without known secrets and whatever looks like one."""
    print(redact(text), flush=True)


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Guard the loggers from now on, and standard output and error until the context ends."""
    guard_logging()
    before = sys.stdout, sys.stderr
    guarded = GuardedStream(sys.stdout, hide_pieces), GuardedStream(sys.stderr, redact)
    sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in guarded:
            with contextlib.suppress(OSError, ValueError):  # its reader may be gone
                stream.finish()


def guard_process(*settings: Any) -> None:
    """Guard this process until it ends; every actor calls this first.

    Args:
        settings: settings that hold the process's secrets.
    """
    remember_in([_plain(setting) for setting in settings])
    guard_logging()
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = GuardedStream(sys.stdout, hide_pieces)
    if not isinstance(sys.stderr, GuardedStream):
        sys.stderr = GuardedStream(sys.stderr, redact)


@contextlib.contextmanager
def redacted_errors() -> Iterator[None]:
    """Remove secrets from errors that leave this process: the receiver may not know them and can't hide them.

    An error without secrets is raised unchanged. With secrets, a Whetstone error keeps its class. Any other
    becomes a RunError that names the original class.
    """
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if (clean := redact(text)) == text:
            raise
        logging.getLogger(__name__).error("%s", clean)
        if isinstance(error, WhetstoneError):
            kind = next(base for base in type(error).__mro__ if base.__module__ == WhetstoneError.__module__)
            raise kind(redact(str(error))) from None
        raise RunError(redact(f"{type(error).__name__}: {error}")) from None


def guard_logging() -> None:
    """Redact every record of every logger of this process, before any handler sees it."""
    make = logging.getLogRecordFactory()
    if getattr(make, "is_guarded", False):
        return

    def make_guarded(*arguments: Any, **options: Any) -> logging.LogRecord:
        return _redacted(make(*arguments, **options))

    make_guarded.is_guarded = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_guarded)


def _redacted(record: logging.LogRecord) -> logging.LogRecord:
    with contextlib.suppress(Exception):  # logging itself reports a record that it can't format
        message = record.getMessage()
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, ()
    if record.exc_info:  # a formatter uses exc_text if it is set
        record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        record.stack_info = redact(record.stack_info)
    return record


def _plain(settings: Any) -> Any:
    return settings.model_dump() if hasattr(settings, "model_dump") else settings
