"""TensorBoard: event files in `<output_dir>/tensorboard/<run_name>-<the run's id>`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from services.runs.tracking.identity import own_name
from services.runs.tracking.settings import TrackingSettings


class TensorboardSink:
    """Event file of one run."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def parameters(self, texts: Mapping[str, str]) -> None:
        rows = "\n".join(f"| {key} | {text} |" for key, text in texts.items())
        self._writer.add_text("settings", f"| key | value |\n|---|---|\n{rows}")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        for number, row in enumerate(rows):
            text = "\n\n".join(f"**{key}** {value}" for key, value in row.items())
            self._writer.add_text(f"samples/{split}/{number}", text, step)

    def close(self, is_finished: bool) -> None:
        self._writer.close()


def open_run(
    settings: TrackingSettings, run_name: str, output_dir: Path, identity: str | None
) -> TensorboardSink:
    """Open a new event file, which TensorBoard joins to the run's earlier ones."""
    return TensorboardSink(output_dir / "tensorboard" / own_name(run_name, identity))
