"""Read a run's results from its folder."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whetstone.command import run_command
from whetstone.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

INFO_FILES = ("rollout_info.jsonl", "training_info.jsonl")
SPLITS = {"val": "validation", "test": "test"}  # splits by their names in files


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder. Each access reads its table again, also during the run.

    Example: `Run(Path("runs/demo")).metrics["reward/mean"]`
    """

    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the trained model, in Hugging Face format; written after the last iteration."""
        return self.folder / "model"

    @property
    def metrics(self) -> "DataFrame":
        """Metrics, a row for each iteration from 1 on: rewards, losses, lengths, times."""
        from pandas import DataFrame, Index

        rows: dict[int, dict[str, Any]] = {}
        for name in INFO_FILES:
            for row in _lines(self.folder / name):
                rows.setdefault(row.pop("iteration"), {}).update(row)
        return DataFrame([rows[number] for number in sorted(rows)], Index(sorted(rows), name="iteration"))

    @property
    def evaluations(self) -> "DataFrame":
        """Evaluations, a row for each: `split`, `epoch`, metrics. Epoch n comes after n iterations."""
        from pandas import DataFrame

        rows = [
            {"split": split, "epoch": row["epoch"], **row["metrics"]}
            for short, split in SPLITS.items()
            for row in _lines(self.folder / f"{short}_split_metrics.jsonl")
        ]
        table = DataFrame(rows, columns=None if rows else ["split", "epoch"])
        return table.drop_duplicates(["split", "epoch"], keep="last", ignore_index=True)

    @property
    def samples(self) -> "DataFrame":
        """Texts of the evaluations, a row for each: `split`, `epoch`, prompt, text, references, scores."""
        from pandas import DataFrame

        rows = []
        for short, split in SPLITS.items():
            for file in self.folder.glob(f"epoch_*_{short}_split_predictions.json"):
                epoch = int(file.name.split("_")[1])
                written = json.loads(file.read_text(encoding="utf-8"))
                rows += [{"split": split, "epoch": epoch, **row} for row in written]
        rows.sort(key=lambda row: (row["epoch"], row["split"] != "validation"))
        return DataFrame(rows).drop(columns="split_name", errors="ignore")

    def generate(self, prompts: str | Sequence[str], *, n: int = 1, **options: Any) -> list[str]:
        """Let the trained model write `n` texts for each prompt, in the prompts' order.

        Args:
            options: those of `whetstone generate`, such as `max_tokens=60`, `temperature=0`, `seed=1`,
                `engine="vllm"`. The defaults are those of the run's evaluation.

        Raises:
            InputError: there is no model yet, or an option is wrong.
            RunError: generating failed.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not texts:
            return []
        words = [
            word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))
        ]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "prompts.jsonl")
            write_lines(file, [{"prompt": prompt} for prompt in texts])
            command = ["generate", str(self.folder), "--prompts", str(file), "--n", str(n), "--json", *words]
            printed = run_command(command, show=False)
        # splitlines() would also split inside texts, at U+2028.
        return [json.loads(line)["prediction"] for line in printed.split("\n") if line]


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run in a folder, however it was started.

    Raises:
        InputError: the folder holds no run.
    """
    path = Path(folder)
    if not is_run(path):
        there = "it has no config.yaml" if path.exists() else "there is no such folder"
        raise InputError(f"{path} is not a run's folder: {there}; expected a folder such as runs/RUN_NAME")
    return Run(path)


def is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file()


def write_lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, except an unfinished one."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
