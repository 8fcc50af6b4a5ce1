"""The caller's process as before a command ran in it: signals, logging, environment, streams, numbers.

Libraries that a command imported stay imported, with its settings. The user's modules do not stay: the next
command reads them again, because the user may have edited them.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

from whetstone.own_place import is_users

BARS = ("datasets.utils.logging", "transformers.utils.logging")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Restore a command's changes in its process, however the command ends."""
    with contextlib.ExitStack() as ends:
        for kept in (_streams, _signals, _logging, _paths, _modules, _numbers, _libraries, _variables):
            ends.callback(kept())
        yield


def _variables() -> Callable[[], None]:
    before = dict(os.environ)
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the folder was deleted
        folder = os.curdir

    def restore() -> None:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
        with contextlib.suppress(OSError):  # the folder was deleted meanwhile
            os.chdir(folder)

    return restore


def _signals() -> Callable[[], None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    had_faults = faulthandler.is_enabled()

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if faulthandler.is_enabled() and not had_faults:
            faulthandler.disable()

    return restore


def _logging() -> Callable[[], None]:
    make, root = logging.getLogRecordFactory(), logging.getLogger()
    loggers = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    before = [(logger, *_state(logger)) for logger in (root, *loggers)]
    filters, show = list(warnings.filters), warnings.showwarning

    def restore() -> None:
        logging.captureWarnings(False)
        logging.setLogRecordFactory(make)
        for logger, handlers, filters_there, level, propagate, disabled in before:
            for handler in [handler for handler in logger.handlers if handler not in handlers]:
                logger.removeHandler(handler)
                handler.close()
            for handler in [handler for handler in handlers if handler not in logger.handlers]:
                logger.addHandler(handler)
            logger.filters[:] = filters_there
            logger.propagate, logger.disabled = propagate, disabled
            if logger.level != level:
                logger.setLevel(level)
        warnings.filters[:] = filters  # type: ignore[index]
        warnings.showwarning = show

    return restore


def _state(logger: logging.Logger) -> tuple[Any, ...]:
    return list(logger.handlers), list(logger.filters), logger.level, logger.propagate, logger.disabled


def _streams() -> Callable[[], None]:
    before = sys.stdout, sys.stderr, sys.argv, sys.excepthook

    def restore() -> None:
        sys.stdout, sys.stderr, sys.argv, sys.excepthook = before

    return restore


def _paths() -> Callable[[], None]:
    path, finders = list(sys.path), list(sys.meta_path)

    def restore() -> None:
        sys.path[:] = path
        sys.meta_path[:] = finders

    return restore


def _modules() -> Callable[[], None]:
    """Forget the user's modules that the command imports, except compiled ones, which load only once."""
    before = set(sys.modules)

    def restore() -> None:
        added = {name: module for name, module in sys.modules.items() if name not in before}
        compiled = {_top(name) for name, module in added.items() if _is_compiled(module)}
        for name, module in added.items():
            if _top(name) not in compiled and is_users(name, module):
                del sys.modules[name]
                place, _, last = name.rpartition(".")
                parent = sys.modules.get(place)
                if parent is not None and vars(parent).get(last) is module:
                    delattr(parent, last)  # `from package import module` would find it

    return restore


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_compiled(module: ModuleType) -> bool:
    return str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))


def _numbers() -> Callable[[], None]:
    """Restore the states of random generators, and torch's threads."""
    state = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    of_numpy = numpy.random.get_state() if numpy else None
    of_torch = (torch.get_rng_state(), torch.get_num_threads()) if torch else None
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()

    def restore() -> None:
        random.setstate(state)
        if numpy and of_numpy is not None:
            numpy.random.set_state(of_numpy)
        if torch and of_torch is not None:
            torch.set_rng_state(of_torch[0])
            torch.set_num_threads(of_torch[1])
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        (gc.enable if was_enabled else gc.disable)()

    return restore


def _libraries() -> Callable[[], None]:
    """Restore whether libraries show progress bars; a library not imported yet shows them."""
    before = {name: _shows_bars(name) for name in BARS}

    def restore() -> None:
        for name, did in before.items():
            if did and not _shows_bars(name):
                sys.modules[name].enable_progress_bar()

    return restore


def _shows_bars(name: str) -> bool:
    module = sys.modules.get(name)
    return module is None or bool(module.is_progress_bar_enabled())
