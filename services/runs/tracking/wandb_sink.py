"""Weights & Biases. Its variables (WANDB_API_KEY, WANDB_MODE=offline) work as usual."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.runs.tracking.settings import TrackingSettings


class WandbSink:
    """Run in Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def parameters(self, texts: Mapping[str, str]) -> None:
        self._run.config.update(dict(texts), allow_val_change=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        # An evaluation comes after its iteration, with the same step, because W&B rejects earlier steps.
        self._run.log({**values, "iteration": step})

    def samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        import wandb

        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = wandb.Table(columns=columns, data=[[str(row.get(c, "")) for c in columns] for row in rows])
        self._run.log({f"samples/{split}": table, "iteration": step})

    def close(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


def open_run(settings: TrackingSettings, run_name: str, output_dir: Path, identity: str | None) -> WandbSink:
    """Begin the run, or continue it."""
    import wandb

    run = wandb.init(
        project=settings.experiment,
        entity=settings.team,
        name=run_name,
        id=identity or _id_by_place(output_dir / run_name),
        resume="allow",
        dir=str(output_dir),
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.define_metric("*", step_metric="iteration")
    return WandbSink(run)


def _id_by_place(folder: Path) -> str:
    """Return the id that older versions gave the run in this folder."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]
