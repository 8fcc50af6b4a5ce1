"""An hour of chaos: every part of a run is killed while it starts, runs and saves; files and disks go wrong.

    python -m tests.chaos [FILE]     writes a table into FILE, else benchmarks/out/chaos.md

Each case is a run of its own. Its lines must equal those of a run that nobody disturbed. Where a run
ends, the same command is typed again.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.fault_kit import processes
from tests.models import make_tiny_model
from tests.runs import Run, results

ITERATIONS, STOPPED_AFTER = 12, 5
NEWEST = "checkpoints/newest"
PAGE = Path("benchmarks/out/chaos.md")
PARTS = {
    "rollout worker": "ray::RolloutWorker",
    "learner": "ray::Learner",
    "reward replica": "ray::ServeReplica",
    "Serve's controller": "ray::ServeController",
    "Ray's raylet": "raylet",
    "Ray's head service": "gcs_server",
}
SAVING = "checkpoints/*.unfinished"
COLOURS = re.compile(r"\x1b")
Act = Callable[[Run], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One event of a run, and its time. `before` spoils a run that was stopped; `act` one that goes."""

    when: str
    what: str
    act: Act | None = None
    before: Act | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row: exit codes of the command, first to last, and what it said."""

    case: Case
    codes: tuple[int, ...]
    seconds: float  # of all its starts
    notes: str
    is_equal: bool


def cases() -> Iterator[Case]:
    """Every case, in the order of the page."""
    for name, title in PARTS.items():
        yield Case("starting", f"{name}, SIGKILL", partial(kill, title))
    for name, title in PARTS.items():
        yield Case("running", f"{name}, SIGKILL", partial(kill, title, iteration=3))
    for name in ("rollout worker", "learner", "reward replica"):
        yield Case("saving", f"{name}, SIGKILL", partial(kill, PARTS[name], saving=True))
    for when, options in (("starting", {}), ("running", {"iteration": 3}), ("saving", {"saving": True})):
        yield Case(when, "the driver, SIGKILL", partial(strike, [signal.SIGKILL], **options))
        twice = [signal.SIGINT, signal.SIGINT]
        yield Case(when, "Ctrl-C twice in 0.2 s, to the whole group", partial(strike, twice, **options))
        both = [signal.SIGINT, signal.SIGTERM]
        yield Case(when, "Ctrl-C, and SIGTERM 0.2 s later", partial(strike, both, **options))
    for what, spoil in spoilt():
        yield Case("stopped", what, before=spoil)
    yield Case("running", "the disk is full", fill)


def spoilt() -> Iterator[tuple[str, Act]]:
    """Files of a run that was stopped, damaged before it goes on."""
    policy = "policy.safetensors"
    for name in (policy, "optimizer.safetensors", "checksums.json", "loop.json"):
        yield f"newest checkpoint: {name} cut in half", partial(cut, f"{NEWEST}/{name}")
    yield f"newest checkpoint: a bit of {policy} flipped", partial(flip, f"{NEWEST}/{policy}")
    yield f"newest checkpoint: {policy} missing", partial(remove, f"{NEWEST}/{policy}")
    yield f"all checkpoints: a bit of {policy} flipped", partial(flip, f"checkpoints/*/{policy}")
    yield "rollout_info.jsonl: its second line damaged", garble
    yield "rollout_info.jsonl: its last line cut short", partial(cut, "rollout_info.jsonl", share=0.97)
    yield "config.yaml: cut in half", partial(cut, "config.yaml")
    yield "config.yaml: missing", partial(remove, "config.yaml")


def kill(title: str, run: Run, iteration: int | None = None, saving: bool = False) -> None:
    """Kill the first process with the title: as soon as it is there, in an iteration, or in a save."""
    await_moment(run, iteration, saving)
    run.wait_for(title, lambda: named(run, title))[0].kill()


def strike(numbers: list[int], run: Run, iteration: int | None = None, saving: bool = False) -> None:
    """Send the signals 0.2 s apart: SIGKILL to the driver, others to its whole group."""
    await_moment(run, iteration, saving)
    if iteration is None and not saving:
        run.wait_for("a worker that starts", lambda: named(run, PARTS["rollout worker"]))
    for number in numbers:
        run.signal(number, to_all=number != signal.SIGKILL)
        time.sleep(0.2)


def await_moment(run: Run, iteration: int | None, saving: bool) -> None:
    if iteration is not None:
        run.wait_for_iteration(iteration)
    if saving:
        run.wait_for("a save", lambda: list(run.folder.path.glob(SAVING)))


def named(run: Run, title: str) -> list:
    """Processes by Ray's title, or by the name of the program."""
    if title.startswith("ray::"):
        return processes(run, title)
    return [process for process in run.children() if process.name() == title]


def cut(pattern: str, run: Run, share: float = 0.5) -> None:
    for file in files(run, pattern):
        os.truncate(file, int(file.stat().st_size * share))


def flip(pattern: str, run: Run) -> None:
    for file in files(run, pattern):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x10
        file.write_bytes(content)


def garble(run: Run) -> None:
    """Make the second line of rollout_info.jsonl no JSON."""
    (file,) = files(run, "rollout_info.jsonl")
    first, second, *others = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([first, second.replace(b"{", b"#", 1), *others]))


def remove(pattern: str, run: Run) -> None:
    for file in files(run, pattern):
        file.unlink()


def files(run: Run, pattern: str) -> list[Path]:
    pattern = pattern.replace(NEWEST, f"checkpoints/{max(run.folder.checkpoints())}")
    paths = sorted(run.folder.path.glob(pattern))
    assert paths, f"{run.folder.path} has no {pattern}: {sorted(run.folder.path.rglob('*'))}"
    return paths


def fill(run: Run) -> None:
    """Leave no room on the run's disk until the run has ended; then make some."""
    run.wait_for_iteration(3)
    ballast = run.folder.path.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(2**12))
            except OSError:
                break
    run.finish()
    ballast.unlink()


def play(case: Case, straight: Run, stopped: Run, model: Path, place: Path) -> Outcome:
    """Let one case happen and go on until the run is done, or cannot be."""
    run = Run(place, "run", *overrides(model))
    if case.before is not None:
        shutil.copytree(stopped.folder.path, run.folder.path)
        case.before(run)
    began, codes = time.monotonic(), []
    try:
        run.start()
        if case.act is not None:
            case.act(run)
        codes.append(run.finish())
        notes = words(run.output).replace(str(run.folder.path), "RUN")
        if codes[-1] not in (0, 2):
            codes.append(run.start().finish())
        left = run.left_over()
    finally:
        run.end()
    assert not COLOURS.search(run.output) and "Traceback" not in run.output, run.output
    assert not left and not list(run.folder.path.glob(SAVING)), left
    whole = lines(run) == lines(straight)
    return Outcome(case, tuple(codes), time.monotonic() - began, notes, whole)


def lines(run: Run) -> list[dict[str, object]]:
    """Results of iterations; how many workers were up is none."""
    rows = results(run.folder.rollout_info()) + results(run.folder.training_info())
    return [{key: value for key, value in row.items() if not key.startswith("workers/")} for row in rows]


def words(output: str) -> str:
    """The warnings of a run, and its last words where it was ended."""
    printed = output.splitlines()
    notices = [line for line in printed if "warning: " in line or line.startswith("whetstone train: ")]
    shown = [re.sub(r"^(whetstone train|.*warning): ", "", line) for line in notices]
    return "; ".join(dict.fromkeys(shown)).replace("|", "\\|")


def overrides(model: Path) -> tuple[str, ...]:
    return (
        f"model.path={model}",
        "rollout.engine=transformers",
        f"iterations={ITERATIONS}",
        "evaluate_every=0",
        "save_every=1",
        "keep_checkpoints=9",
        "metrics=[]",
        "reward_servers.default.replicas=1",  # on Serve, whose controller is killed, too
        "tracking.enabled=false",
    )


def main(page: Path) -> int:
    """Play all cases; the exit code says whether every run ended as it should."""
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    disk = root / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    model = make_tiny_model(root / "model")
    straight = Run(root / "straight", "run", *overrides(model))
    stopped = Run(root / "stopped", "run", *overrides(model))
    outcomes: list[Outcome] = []
    try:
        assert straight.start().finish() == 0, straight.output
        stopped.start().wait_for_iteration(STOPPED_AFTER)
        stopped.signal(signal.SIGINT)
        assert stopped.finish() == 130, stopped.output
        for number, case in enumerate(cases()):
            place = disk if case.act is fill else root / str(number)
            outcomes.append(play(case, straight, stopped, model, place))
            print(row(outcomes[-1]), flush=True)
            write(page, outcomes)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    return int(not all(outcome.is_equal for outcome in outcomes))


def row(outcome: Outcome) -> str:
    codes, equal = ", ".join(map(str, outcome.codes)), "yes" if outcome.is_equal else "no"
    notes = outcome.notes or "–"
    return (
        f"| {outcome.case.when} | {outcome.case.what} | {codes} | {equal} | {outcome.seconds:.0f} | {notes} |"
    )


def write(page: Path, outcomes: list[Outcome]) -> None:
    total = sum(outcome.seconds for outcome in outcomes) / 60
    content = [
        "# Chaos",
        "",
        f"{len(outcomes)} whole runs with real Ray and Serve, {total:.0f} minutes in all. In each, one",
        "thing goes wrong. A run that ends is started again with the same command. *Equal*:",
        "its lines are those of a run that nobody disturbed, to the last digit.",
        "Exit codes: 0 done, 1 a fault, 2 wrong input,",
        "130 interrupted and saved, -9 killed. Seconds are those of all starts. *Said*: the warnings and the",
        "last words of the first start. Where the code is 2, the run was refused and its files are still",
        "there. Where a damaged line is lost, the run says which one, keeps the original beside, and goes",
        "on: its lines are equal but for that one. *Saving*: as soon as a half-written checkpoint is seen;",
        "one so small may be whole before the kill arrives.",
        "",
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}.",
        "",
        "| while | what | exit codes | equal | seconds | said |",
        "|---|---|---|---|---|---|",
        *map(row, outcomes),
        "",
        "`python -m tests.chaos`",
        "",
    ]
    page.write_text("\n".join(content))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE))
