"""A run's log.txt: notes of its console, warnings of any library, and the error that ends it.

console.note ──▶ "notes"    time, level, text
logging      ──▶ root       warnings and worse, with tracebacks; ours also appear on the console
warnings     ──▶ py.warnings

`contracts.secrets.output` redacts every record first.
"""

import logging
import sys
from pathlib import Path

from contracts.secrets.output import guard_logging
from services.runs.tracking.console import Console
from services.runs.tracking.screen import Level

OURS = ("contracts", "learner", "reward_servers", "rollout_workers", "services")
# Libraries that keep their warnings from the root logger.
APART = ("datasets", "huggingface_hub", "mlflow", "ray", "transformers")
NOTES = "notes"
LEVELS: dict[Level, int] = {"info": logging.INFO, "warning": logging.WARNING}
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_attached: list[tuple[logging.Logger, logging.Handler]] = []  # handlers of the current log


def log_to(file: Path, console: Console) -> None:
    """Write all notes and warnings of this process into `file` from now on, and into no other log."""
    close_log()
    guard_logging()
    handler = _Log(file, delay=False, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(lambda record: record.name == NOTES or record.levelno >= logging.WARNING)
    notes = logging.getLogger(NOTES)
    notes.setLevel(logging.INFO)
    notes.propagate = False
    apart = [logger for logger in map(logging.getLogger, APART) if not logger.propagate]
    for logger in (logging.getLogger(), notes, *apart):
        _attach(logger, handler)
    logging.captureWarnings(True)
    for shown in (*OURS, "py.warnings"):
        _attach(logging.getLogger(shown), _Shown(console))
    console.listen(lambda text, level: notes.log(LEVELS[level], "%s", text))


def close_log() -> None:
    """Stop writing the log."""
    while _attached:
        logger, handler = _attached.pop()
        logger.removeHandler(handler)
        handler.close()
    logging.captureWarnings(False)


def _attach(logger: logging.Logger, handler: logging.Handler) -> None:
    logger.addHandler(handler)
    _attached.append((logger, handler))


class _Log(logging.FileHandler):
    """Log file that prints no tracebacks on the console if the disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Shown(logging.Handler):
    """Handler that shows warnings on the console. The root logger writes them to the file."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.show(record.getMessage().strip(), "warning")
