"""Trackio: a local dashboard. `TRACKIO_DIR` names the place of its files, as usual."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.runs.tracking.identity import own_name
from services.runs.tracking.settings import TrackingSettings


class TrackioSink:
    """Run in Trackio."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def parameters(self, texts: Mapping[str, str]) -> None:
        self._run.config.update(texts)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        import trackio

        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[str(row.get(column, "")) for column in columns] for row in rows]
        table = trackio.Table(columns=columns, data=data)
        self._run.log({f"samples/{split}": table}, step=step)

    def close(self, is_finished: bool) -> None:
        self._run.finish()


def open_run(
    settings: TrackingSettings, run_name: str, output_dir: Path, identity: str | None
) -> TrackioSink:
    """Begin the run, or continue it by its name."""
    import trackio
    import trackio.run

    # Trackio prints its actions in the middle of our progress, and has no option for silence.
    for module in (trackio, trackio.run):
        vars(module)["print"] = lambda *words, **options: None
    return TrackioSink(
        trackio.init(
            project=settings.experiment,
            name=own_name(run_name, identity),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    )
