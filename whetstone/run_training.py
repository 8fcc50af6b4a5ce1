"""Train in this process: the caller's, or one started for it.

overrides, objects ─▶ the run's folder: rows/ what it learns from, functions/ what it was rewarded by
                   ─▶ services.training.train.train
"""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whetstone.identity import LENGTH
from whetstone.overrides import words
from whetstone.rows import placed, write, write_whole

if TYPE_CHECKING:
    from whetstone.objects import Objects

ROWS, FUNCTIONS = "rows", "functions"  # folders in a run's folder


def run_training(overrides: Mapping[str, Any], objects: "Objects") -> tuple[int, Path]:
    """Train; return the command's exit code and the run's folder.

    Raises:
        InputError, RunError: the run was refused, or failed.
    """
    from services.config.compose import run_settings
    from services.runs.claim import refuse_strangers
    from services.terminal.doing import doing
    from services.training.train.train import train

    with doing("reading the configuration"), tempfile.TemporaryDirectory() as before:
        write(objects.rows, Path(before))
        settings = run_settings(words(placed(overrides, Path(before))))
    folder = Path(settings.output_dir).absolute() / settings.run_name
    refuse_strangers(folder)
    new = _new_paths(objects, folder)
    try:
        write(objects.rows, folder / ROWS)
        for name, text in objects.sources.items():  # for people; nothing reads them again
            write_whole(folder / FUNCTIONS / f"{name}.py", text)
        if objects.rows:
            settings = run_settings(words(placed(overrides, folder / ROWS)))
        return train(settings), folder
    finally:
        _remove_refused(new, folder / "config.yaml")


def _new_paths(objects: "Objects", folder: Path) -> list[Path]:
    """Return the files and folders that the call makes before its run begins."""
    files = [Path(placed(place, folder / ROWS)) for place in objects.rows]
    files += [folder / FUNCTIONS / f"{name}.py" for name in objects.sources]
    paths = [*files, folder / ROWS, folder / FUNCTIONS, folder]
    return [path for path in paths if not path.exists()]


def _remove_refused(paths: list[Path], config: Path) -> None:
    """Remove files whose digest the run's configuration lacks, because their start was refused."""
    text = config.read_text(encoding="utf-8") if config.exists() else ""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_dir():
                path.rmdir()  # unless it holds something
            elif path.stem[-LENGTH:] not in text:
                path.unlink(missing_ok=True)
