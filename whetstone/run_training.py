"""Train in this process: the caller's own, or one that was started for it.

overrides, objects ─▶ the run's folder: rows/ what it learns from, functions/ what it was rewarded by
                   ─▶ services.train.train
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whetstone.overrides import words
from whetstone.rows import placed, write

if TYPE_CHECKING:
    from whetstone.objects import Objects

ROWS, FUNCTIONS = "rows", "functions"  # in a run's folder


def run_training(overrides: Mapping[str, Any], objects: "Objects") -> tuple[int, Path]:
    """Train; return the command's exit code and the run's folder.

    Raises:
        InputError, RunError: the run was refused, or failed.
    """
    from contracts.errors import InputError
    from services.config.compose import run_settings
    from services.runs.claim import refuse_strangers
    from services.terminal.doing import doing
    from services.train.train import train

    with doing("reading the configuration"), tempfile.TemporaryDirectory() as before:
        write(objects.rows, Path(before))
        settings = run_settings(words(placed(overrides, Path(before))))
    folder = Path(settings.output_dir).absolute() / settings.run_name
    refuse_strangers(folder)
    is_new = not (folder / "config.yaml").exists()
    write(objects.rows, folder / ROWS)
    _write_sources(objects.sources, folder / FUNCTIONS)
    if objects.rows:
        settings = run_settings(words(placed(overrides, folder / ROWS)))
    try:
        return train(settings), folder
    except InputError:
        if is_new and not (folder / "config.yaml").exists():  # a run that was refused leaves nothing
            for name in (ROWS, FUNCTIONS):
                shutil.rmtree(folder / name, ignore_errors=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise


def _write_sources(sources: Mapping[str, str], folder: Path) -> None:
    """Write the sources for people; nothing reads them again."""
    for name, text in sources.items():
        if text:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
