"""A run by its path, and the runs near a wrong path, for error messages."""

import difflib
from pathlib import Path

from contracts.errors import InputError
from services.runs.folder import RunFolder, is_run


def run_at(path: Path, hint: str = "") -> RunFolder:
    """Return the run in a folder.

    Args:
        hint: sentence about what the user may mean instead.

        Raises:
        InputError: `path` is not a run's folder; the message names the runs nearby.
    """
    if is_run(path):
        return RunFolder(path)
    what = "there is no such folder" if not path.exists() else "it has no config.yaml, so it is not a run"
    expected = f"{path}: {what}; expected a run's folder, <output_dir>/<run_name>"
    raise InputError(expected + (f". {hint}" if hint else "") + runs_near(path))


def runs_near(path: Path) -> str:
    """Return the end of an error message about a path: the run that may be meant, and the runs nearby."""
    nearby = [run for run in nearby_runs(path) if run.absolute() != path.absolute()]
    if not nearby:
        return ". There are no runs nearby"
    by_name = {run.name: run for run in reversed(nearby)}  # the newest run of each name
    close = [] if is_run(path) else difflib.get_close_matches(path.name, by_name, n=1)
    meant = f". Did you mean {by_name[close[0]]}?" if close else "."
    return f"{meant} Runs nearby, newest first:" + "".join(f"\n  {run}" for run in nearby)


def nearby_runs(path: Path, most: int = 10) -> list[Path]:
    """Return runs in `path`, beside it, in the working folder and in its `runs`, newest first."""
    places = dict.fromkeys(
        place.absolute() for place in (path, path.parent, path.parent / "runs", Path(), Path("runs"))
    )
    folders = {file.parent for place in places for file in place.glob("*/config.yaml")}
    newest_first = sorted(folders, key=lambda folder: (folder / "config.yaml").stat().st_mtime, reverse=True)
    here = Path.cwd()
    return [run.relative_to(here) if run.is_relative_to(here) else run for run in newest_first[:most]]
