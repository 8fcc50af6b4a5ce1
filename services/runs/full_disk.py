"""Messages for a full disk: what was not written, what is safe, and what to type."""

from pathlib import Path

from contracts.errors import DiskFull, RunError
from contracts.processes.disk import full_places, is_full, ray_folder
from services.runs import checkpoints
from services.runs.checkpoint_retention import trained_until
from services.runs.folder import RunFolder


def explained(error: Exception, folder: RunFolder) -> Exception:
    """Return the error to show: one line for a full disk, else the error, with a hint if a disk is full."""
    if not is_full(error):
        return _with_hint(error, folder)
    reason = str(error) if isinstance(error, DiskFull) else f"{type(error).__name__}: {_first_line(error)}"
    return DiskFull(f"{reason}. {what_is_safe(folder)}")


def what_is_safe(folder: RunFolder) -> str:
    """Return a message about what a run has saved, what is lost and what to do.

    Example: `Safe in runs/numbers: checkpoint 4 and the lines until iteration 4. Not saved: iteration 5.
    Make room, and the same command continues from there`
    """
    newest = checkpoints.latest(folder)
    last = max((row["iteration"] for row in folder.rollout_info()), default=0)
    if newest is None:
        lost = f"Not saved: {_iterations(1, last)}" if last else "No iteration was finished"
        return f"No checkpoint is in {folder.path} yet. {lost}. Make room, and the same command starts again"
    saved = newest[0]
    lost = f"Not saved: {_iterations(saved + 1, last)}. " if last > saved else ""
    model = ", model/" if trained_until(folder.model) == saved else ""
    return (
        f"Safe in {folder.path}: checkpoint {saved}{model} and the lines until iteration {saved}. {lost}"
        "Make room, and the same command continues from there"
    )


def _iterations(first: int, last: int) -> str:
    """Name a range of iterations.

    >>> _iterations(4, 4), _iterations(4, 6)
    ('iteration 4', 'iterations 4 to 6')
    """
    return f"iteration {first}" if first == last else f"iterations {first} to {last}"


def _with_hint(error: Exception, folder: RunFolder) -> Exception:
    """Name full places in a RunError, because a part that died of a full disk may have been unable to."""
    places = [folder.path, ray_folder(), Path("/dev/shm")]  # the run's, Ray's files, Ray's object store
    full = full_places(places) if isinstance(error, RunError) else []
    if not full:
        return error
    listed = " and ".join(map(str, dict.fromkeys(full)))
    return RunError(f"{_first_line(error)}. There is no room left in {listed}. {what_is_safe(folder)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
