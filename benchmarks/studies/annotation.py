"""Annotation of 10,000 responses with three rewards: killed and resumed, and with more replicas.

`python -m benchmarks.studies.annotation` runs `whetstone annotate` on one data set three times: with one
replica for each reward; with four; with four, killed by -9 at two fifths and started again. Each reward takes
5 ms for a text, and records its texts. --page FILE writes the results.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.outcome import OUT
from contracts.scores import Sample
from contracts.settings import Settings

ROOT = OUT / "annotation"
ROWS, LABELS, TEXT_S = 10_000, "abc", 0.005
KILLED_AT = 0.4  # share of the rows before the kill
PAUSE_S = 20.0  # seconds before the restart


class Ledger(Settings):
    """A score that depends on the text alone and takes 5 ms; `file` gets a line for each text."""

    file: str
    factor: int = 1

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(TEXT_S * len(samples))
        now = time.time()
        lines = "".join(f"{sample.text}\t{now}\n" for sample in samples)
        # One write in append mode, so that lines of several replicas don't mix.
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, lines.encode())
        os.close(handle)
        return [float(int(sample.text.rsplit(" ", 1)[1]) * self.factor % 101) for sample in samples]


@dataclass(frozen=True, slots=True)
class Found:
    """The seconds of one annotation, and how often each text was scored."""

    seconds: float
    counts: tuple[Counter[str], ...]  # one for each reward

    @property
    def missing(self) -> int:
        return sum(ROWS - len(counts) for counts in self.counts)

    @property
    def twice(self) -> int:
        return sum(times - 1 for counts in self.counts for times in counts.values())


def make_data(folder: Path) -> None:
    """Write the data set, with other rows for validation and test."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, numbers in (("train", range(ROWS)), ("validation", range(8)), ("test", range(8))):
        rows = ({"prompt": f"{split} {n // 4}", "response": f"this is answer {n}"} for n in numbers)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, data: Path, replicas: int) -> list[str]:
    rewards = ", ".join(
        f"{{name: 'benchmarks.studies.annotation:Ledger', label: {label}, file: '{folder / label}', factor: {n}}}"
        for n, label in enumerate(LABELS, start=1)
    )
    return [
        *(sys.executable, "-m", "services.cli", "annotate", f"data.files={data}"),
        *(f"reward=[{rewards}]", f"output={folder / 'out'}", "num_in_flight=16"),
        f"reward_servers.default.replicas={replicas}",
    ]


def annotate(name: str, data: Path, replicas: int, *, kill: bool = False) -> None:
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arguments = command(folder, data, replicas)
    if kill:
        process = subprocess.Popen(arguments, start_new_session=True)
        while len(lines(folder / LABELS[-1])) < KILLED_AT * ROWS:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"killed with {[len(lines(folder / label)) for label in LABELS]} scored", flush=True)
        time.sleep(PAUSE_S)  # its cluster ends with it
    subprocess.run(arguments, check=True)


def found_in(name: str) -> Found:
    files = [lines(ROOT / name / label) for label in LABELS]
    times = [float(line.split("\t")[1]) for file in files for line in file]
    counts = tuple(Counter(line.split("\t")[0] for line in file) for file in files)
    return Found(max(times) - min(times), counts)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def table(one: Found, four: Found, killed: Found, *, same: bool) -> str:
    def row(name: str, run: Found) -> str:
        return f"| {name} | {run.seconds:.1f} s | {run.twice} | {run.missing} |"

    return "\n".join(
        [
            "# Annotation at scale",
            "",
            f"`whetstone annotate` of {ROWS:,} responses; three rewards of {TEXT_S * 1000:.0f} ms a text,",
            "and `num_in_flight=16`. Other work ran on the machine:",
            f"{os.cpu_count()} CPU cores, Python {platform.python_version()}.",
            "",
            "| | first to last score | scored twice | missing |",
            "|---|---|---|---|",
            row("one replica a reward", one),
            row("four replicas", four),
            row(f"four, `kill -9` at {KILLED_AT:.0%}, {PAUSE_S:.0f} s later started again", killed),
            "",
            f"Four replicas take {one.seconds / four.seconds:.1f} times less. "
            + ("All three files are equal, byte for byte." if same else "The files differ."),
            "",
            "`python -m benchmarks.studies.annotation --page benchmarks/out/annotation.md`",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--again", action="store_true", help="write the page alone, from earlier results")
    arguments = parser.parse_args()
    data = ROOT / "rows"
    make_data(data)
    names = ("one", "four", "killed")
    if not arguments.again:
        annotate("one", data, 1)
        annotate("four", data, 4)
        annotate("killed", data, 4, kill=True)
    files = {(ROOT / name / "out" / "annotated.parquet").read_bytes() for name in names}
    page = table(*map(found_in, names), same=len(files) == 1)
    print(page)
    if arguments.page:
        arguments.page.write_text(page)


if __name__ == "__main__":
    main()
