"""Runs near a path, for error messages about a path that is not a run's folder."""

from pathlib import Path


def no_run(path: Path) -> str:
    """Return an error message: `path` is not the folder of a run. The message lists the runs nearby."""
    nearby = nearby_runs(path)
    reason = "there is no such folder" if not path.exists() else "it has no config.yaml, so it is no run"
    if not nearby:
        return f"{path}: {reason}, and there are no runs nearby. Give a run's folder: <output_dir>/<run_name>"
    listed = "\n".join(f"  {found}" for found in nearby)
    return f"{path}: {reason}. Runs nearby, newest first:\n{listed}"


def nearby_runs(path: Path, most: int = 10) -> list[Path]:
    """Return runs in `path`, beside it, in the working folder and in its `runs`, newest first."""
    places = dict.fromkeys(
        place.absolute() for place in (path, path.parent, path.parent / "runs", Path(), Path("runs"))
    )
    found = {file.parent for place in places for file in place.glob("*/config.yaml")}
    newest_first = sorted(found, key=lambda folder: (folder / "config.yaml").stat().st_mtime, reverse=True)
    here = Path.cwd()
    return [run.relative_to(here) if run.is_relative_to(here) else run for run in newest_first[:most]]
