"""Command `whetstone`: find the subcommand, and turn every failure into a message and an exit code.

0 done · 1 unexpected fault with a traceback in a log · 2 wrong input · 130 interrupted
"""

import difflib
import importlib
import logging
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten

from contracts.errors import InputError, WhetstoneError
from contracts.processes.disk import is_full
from contracts.secrets.output import guarded_output
from contracts.secrets.redaction import redact, remember_typed
from services.cluster.ray_variables import prepare_ray
from services.terminal.doing import doing
from services.terminal.interrupts import EXIT_INTERRUPTED, interruptible, last_line_of, leave_at_once
from services.terminal.visible import COLOURS, visible

# Import a command at its call, so no command waits for another's imports.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("services.commands.train:run", "train a model by reinforcement learning (-m for sweeps)"),
    "plan": ("services.commands.plan:run", "show a run's plan, needs and data without starting it"),
    "evaluate": (
        "services.commands.evaluate:run",
        "score a model or a finished run on validation or test prompts",
    ),
    "generate": ("services.commands.generate:run", "let a trained model write, for prompts of your own"),
    "chat": ("services.commands.chat:run", "talk to a trained model"),
    "score": ("services.commands.score:run", "compute a reward or a metric on files, without training"),
    "benchmark": (
        "services.commands.benchmark:run",
        "train on a benchmark's tasks with each algorithm, and tabulate",
    ),
    "reproduce": (
        "services.commands.reproduce:run",
        "run a published table again from a recipe, and compare",
    ),
    "judge": (
        "services.commands.judge:run",
        "let a chat model say which of two texts is better, and test it",
    ),
    "crowd": (
        "services.commands.crowd:run",
        "make pages for people's judgements of texts, and sum up the answers",
    ),
    "report": ("services.commands.report:run", "write report.html of a run"),
    "watch": ("services.commands.watch:run", "follow a run's episodes"),
    "compare": ("services.commands.compare:run", "write a page about several runs, side by side"),
    "diagnose": (
        "services.commands.diagnose:run",
        "name a run's problems, their evidence and a remedy",
    ),
    "push": ("services.commands.push:run", "publish a run's model with a card, on the hub or in a folder"),
    "list": (
        "services.commands.listing:run",
        "name tasks, rewards, metrics and algorithms, with their options",
    ),
    "doctor": (
        "services.commands.doctor:run",
        "check this machine's software, or a run's files",
    ),
    "serve": ("services.commands.serve:run", "serve rewards and metrics over HTTP"),
    "serve-model": ("services.commands.serve_model:run", "serve a model as OpenAI's clients call it"),
    "serve-training": (
        "services.commands.serve_training:run",
        "train a model from your own loop, by tinker's SDK",
    ),
    "scale": (
        "services.commands.scale:run",
        "change a run's rollout workers, or a reward's replicas",
    ),
    "annotate": (
        "services.commands.annotate:run",
        "score a data set's responses for learning from data",
    ),
    "submit": ("services.commands.submit:run", "train as a job of a Ray cluster; status, logs, stop, resume"),
    "train-reward": (
        "services.commands.train_reward:run",
        "train a classifier or a preference model to be a reward",
    ),
    "import-rl4lms": (
        "services.commands.import_rl4lms:run",
        "turn an RL4LMs configuration into an experiment",
    ),
    "demo": ("services.commands.demo:run", "train a small model on this machine in minutes"),
}
LONGEST_LINE = 1000
EXIT_FAULT, EXIT_INPUT, EXIT_BROKEN_PIPE = 1, 2, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raise."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return ended(arguments, lambda: dispatch(arguments), has_own_process=argv is None)


def ended(arguments: Sequence[str], run: Callable[[], int], *, has_own_process: bool) -> int:
    """Run a typed command to its end, and return its exit code; never raise."""
    command = " ".join(["whetstone", *arguments[:1]])
    remember_typed(list(arguments))
    prepare_ray()
    os.umask(os.umask(0o077) | stat.S_IWOTH)  # only owner and group may write, whatever the shell's umask
    with guarded_output(), interruptible(command):
        try:
            code = _code_of(command, run)
        except KeyboardInterrupt:  # a second signal during the first one's report
            code = EXIT_INTERRUPTED
        if code == EXIT_INTERRUPTED and has_own_process:
            leave_at_once()
        return code


def _code_of(command: str, run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse, after it printed an error (2) or --help (0)
        if isinstance(stop.code, str):
            print(f"{command}: {visible(redact(stop.code))}", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else EXIT_FAULT
    except KeyboardInterrupt:
        print(last_line_of(command), file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # as in `whetstone list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:  # every fault ends here
        return _explain(command, error)


def dispatch(arguments: list[str]) -> int:
    """Run the named command; raise its errors."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    command, *rest = arguments
    if command == "--version":
        print(f"whetstone {version('whetstone')}")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
        meant = f" Did you mean '{near[0]}'?" if near else ""
        raise InputError(f"there is no such command.{meant} There are: {', '.join(COMMANDS)}.")
    address, _ = COMMANDS[command]
    module_name, _, function = address.partition(":")
    with doing(f"loading whetstone {command}"):
        run = getattr(importlib.import_module(module_name), function)
    code: int = run(rest)
    return code


def _help() -> str:
    lines = [f"  {name:<15}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "whetstone COMMAND [ARGUMENTS]: train language models with reinforcement learning",
            "",
            *lines,
            "",
            "whetstone COMMAND --help says more; whetstone --version which version this is.",
            "To begin: whetstone doctor, then whetstone demo.",
        ]
    )


def _explain(command: str, error: Exception) -> int:
    """Report an error on standard error, and choose the exit code."""
    cause = unwrapped(error)
    if isinstance(cause, InputError):
        print(f"{command}: {visible(str(cause))}", file=sys.stderr)
        if _run_log():
            logging.getLogger().error("stopped: %s", cause)
        return EXIT_INPUT
    if is_full(cause):  # the disk has no room for a traceback
        what_to_do = "" if "Make room" in str(cause) else ". Make room, and type the same command again"
        print(f"{command}: {_one_line(cause)}{what_to_do}", file=sys.stderr)
        logging.getLogger().error("stopped: %s", cause)
        return EXIT_FAULT
    kind = "" if isinstance(cause, WhetstoneError) else f"unexpected {type(cause).__name__}: "
    try:
        where = f"traceback in {write_traceback(error)}"
    except OSError as no_room:
        where = f"its traceback could not be written: {no_room.strerror or no_room}"
    print(f"{command}: {kind}{_one_line(cause)} ({where})", file=sys.stderr)
    return EXIT_FAULT


def unwrapped(error: Exception) -> Exception:
    """Return another process's original error from Ray's wrapper."""
    original = getattr(error, "cause", None) if isinstance(error, WhetstoneError) else None
    return original if isinstance(original, WhetstoneError) else error


def _one_line(error: Exception) -> str:
    text = visible(redact(" ".join(COLOURS.sub("", str(error)).split())))
    return shorten(text, LONGEST_LINE, placeholder=" …") or type(error).__name__


def write_traceback(error: Exception) -> Path:
    """Write the traceback into a begun run's log or a new file; return the file."""
    text = redact("".join(traceback.format_exception(error)))
    if log := _run_log():
        logging.getLogger().error("stopped by an error\n%s", text)
        return log
    with tempfile.NamedTemporaryFile("w", prefix="whetstone-", suffix=".log", delete=False) as file:
        file.write(text)
    return Path(file.name)


def write_to_log(text: str) -> None:
    """Write an error into a begun run's log."""
    if _run_log():
        logging.getLogger().error("stopped by an error\n%s", redact(text))


def _run_log() -> Path | None:
    """Return a begun run's log file, or None."""
    files = [
        Path(handler.baseFilename)
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.FileHandler)
    ]
    return next((file for file in files if file.is_file()), None)


if __name__ == "__main__":
    sys.exit(main())
