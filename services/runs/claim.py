"""Claims on a run's folder: only the same run may start there, in one process. Rejections change nothing."""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from contracts.errors import InputError

# Options that may differ when a run resumes: its length, its outputs and their places, and its use of the
# machine. All others affect the results, so a change would put two different runs into one curve.
KEYS_THAT_MAY_CHANGE = """
iterations data.num_epochs stop_when evaluate_every save_every keep_checkpoints keep_best mirror resume
run_name output_dir measures tracking notify cluster reward_servers rollout.num_workers rollout.num_threads
rollout.tensor_parallel_size rollout.sleep rollout.max_concurrent rollout.kv_cache_gib
rollout.gpu_memory_utilization rollout.start_timeout_s rollout.stall_timeout_s rollout.max_restarts
environment.num_parallel environment.isolated environment.start_timeout_s environment.step_timeout_s
environment.max_attempts learner.device learner.num_threads learner.token_budget learner.logits_budget
learner.push learner.transport learner.offload learner.sum_gradients learner.score_early
learner.compile learner.start_timeout_s learner.stall_timeout_s learner.progress_timeout_s
learner.max_restarts
"""
MAY_CHANGE = tuple(KEYS_THAT_MAY_CHANGE.split())

# Files in a folder before its run begins: the log of a failed start, and Python objects.
BEFORE = ("log.txt", "functions", "rows")
OBJECT = re.compile(r"object:([^@'\"]+)@(\w+)")  # name and digest of a Python object
NOTHING = "nothing"  # stands for the value of an option that a configuration lacks
ELSEWHERE = "Choose another run_name= or output_dir=."

# A process holds its runs' folders until it ends or releases them, so the locks are global.
_locks: dict[Path, FileLock] = {}


def refuse_strangers(path: Path) -> None:
    """Reject a `path` that exists and is not a run's folder."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} is not a folder to write in: {error.strerror}. {ELSEWHERE}") from None
    others = sorted(name for name in names if not name.startswith(".") and name not in BEFORE)
    if others and "config.yaml" not in others:
        raise InputError(
            f"{path} holds {others[0]!r} but no config.yaml, so it is not a run's folder. {ELSEWHERE}"
        )


def refuse_other_config(path: Path | str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Reject resuming a run with a configuration that would change its results."""
    differences = config_differences(there, wanted)
    if differences:
        lines = [f"  {_told(*difference)}" for difference in differences[:5]]
        more = len(differences) - len(lines)
        raise InputError(
            f"{path} holds a run with another configuration:\n"
            + "\n".join(lines + [f"  … and {more} more"] * (more > 0))
            + "\nTo start a new run, choose another run_name=."
        )


def _told(key: str, old: str, new: str) -> str:
    """Describe a difference in words. This version may lack the option.

    >>> _told("seed", "1", "2"), _told("rollout.later", "1", "nothing")
    ('seed: there 1, asked for 2', 'rollout.later: there 1, and this run has no such option')
    >>> _told("reward", "[{'name': 'object:brevity@1f'}]", "[{'name': 'object:brevity@2e'}]")
    'reward: brevity, its code or a value that it uses, has changed since the run began'
    """
    before, now = (dict(OBJECT.findall(text)) for text in (old, new))
    if changed := [name for name in before if name in now and before[name] != now[name]]:
        names = " and ".join(changed)
        return f"{key}: {names}, its code or a value that it uses, has changed since the run began"
    if new == NOTHING:
        return f"{key}: there {old}, and this run has no such option"
    return f"{key}: there {old}, asked for {new}"


def make_writable(path: Path) -> None:
    """Make the folder if it is missing, and check that a file can be made in it.

    Raises:
        InputError: the folder can't be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror}. {ELSEWHERE}") from None


def expect_writable(path: Path) -> None:
    """Check like `make_writable`, but make nothing; test the nearest existing folder.

    Raises:
        InputError: the nearest existing folder can't be written.
    """
    there = next(place for place in (path, *path.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{path} can't be written: permission is denied in {there}. {ELSEWHERE}")


def lock(path: Path) -> None:
    """Hold the folder until this process ends in any way.

    Raises:
        InputError: another process holds the folder.
    """
    if path in _locks:
        return
    _locks[path] = FileLock(path / ".lock", blocking=False)
    try:
        _locks[path].acquire()
    except Timeout:
        del _locks[path]
        raise InputError(
            f"{path}: this run is running in another process. Wait for it, or choose another run_name=."
        ) from None
    except OSError:
        pass  # a file system without locks; run without this protection


def let_go() -> None:
    """Release the folders of this process, which continues after its run."""
    while _locks:
        _locks.popitem()[1].release()


def is_held(path: Path) -> bool:
    """Return whether a run is running there, or the lock can't be tested."""
    if path in _locks:
        return True
    if not os.access(path / ".lock", os.W_OK):
        return False
    try:
        with FileLock(path / ".lock", blocking=False):
            return False
    except OSError:  # Timeout is one
        return True


def config_differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], may_change: Sequence[str] = MAY_CHANGE
) -> list[tuple[str, ...]]:
    """Return (dotted key, old value, new value) for each forbidden difference of two configurations.

    >>> config_differences({"seed": 1, "model": {"path": "a"}}, {"seed": 1, "model": {"path": "b"}})
    [('model.path', "'a'", "'b'")]
    >>> config_differences({"iterations": 5}, {"iterations": 9})
    []
    """
    left, right = flatten(there), flatten(wanted)
    fixed = [
        key
        for key in {**left, **right}
        if not any(key == free or key.startswith(f"{free}.") for free in may_change)
    ]
    absent = object()
    return [
        (key, *(repr(side[key]) if key in side else NOTHING for side in (left, right)))
        for key in fixed
        if left.get(key, absent) != right.get(key, absent)
    ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one with dotted keys. Lists stay values.

    >>> flatten({"seed": 1, "model": {"path": "gpt2", "dtype": None}})
    {'seed': 1, 'model.path': 'gpt2', 'model.dtype': None}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` in the form in which YAML reads it: tuples become lists, unusual values become text."""
    read_back: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return read_back
