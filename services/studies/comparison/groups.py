"""Group runs that differ only in their seed, to draw them as one curve with a band."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from contracts.errors import InputError
from services.config.other_versions import completed
from services.runs.claim import MAY_CHANGE, config_differences, flatten
from services.runs.folder import RunFolder
from services.runs.nearby import runs_near
from services.runs.report.evaluated import measure_names
from services.runs.report.run_page import merged

# Settings that do not separate groups. A different length does separate groups here, although a resumed run
# may change it.
IGNORED = ("seed", *(key for key in MAY_CHANGE if key not in ("iterations", "data.num_epochs")))
SEED_AT_THE_END = re.compile(r"[-_. ]*(seed\d*)?[-_. ]*$")
FEWEST = 2
MISSING = "–"  # stands for a setting that a group does not have


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its folder, its configuration, and its metrics, a row for each iteration."""

    folder: RunFolder
    config: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    measures: tuple[str, ...] = ()  # names of the user's own numbers in the rows

    @property
    def name(self) -> str:
        return self.folder.path.absolute().name

    @property
    def seed(self) -> str:
        return str(self.config.get("seed", "–"))

    @property
    def num_done(self) -> int:
        return int(self.rows[-1]["iteration"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed. Example: `Group("numbers-ppo", (run_of_seed_0, run_of_seed_1))`"""

    name: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        return self.runs[0].config


def read_groups(folders: Sequence[RunFolder]) -> list[Group]:
    """Read the runs and group them in the user's order.

    Raises:
        InputError: fewer than two runs or a repeated run were given, or a file can't be read.
    """
    places = [folder.path.absolute() for folder in folders]
    if len(places) < FEWEST or len(set(places)) < len(places):
        listed = " ".join(str(folder.path) for folder in folders)
        raise InputError(
            f"got {listed or 'no run'}; expected two or more different runs"
            + (runs_near(folders[0].path) if folders else "")
        )
    together: list[list[Run]] = []
    for run in of_one_version([read_run(folder) for folder in folders]):
        siblings = next((runs for runs in together if same_but_for_seed(runs[0].config, run.config)), None)
        if siblings is None:
            together.append([run])
        else:
            siblings.append(run)
    names = [group_name([run.name for run in runs]) for runs in together]
    if len(set(names)) < len(names):  # folders of the same name in two places
        names = [str(runs[0].folder.path) for runs in together]
    return [Group(name, tuple(runs)) for name, runs in zip(names, together, strict=True)]


def read_run(folder: RunFolder) -> Run:
    """Read a run's configuration and metrics.

    Raises:
        InputError: a file can't be read.
    """
    config, info = folder.config(), folder.rollout_info()
    measures = measure_names(info) if config.get("measures") else ()
    return Run(folder, config, tuple(merged(info, folder.training_info())), tuple(measures))


def of_one_version(runs: Sequence[Run]) -> list[Run]:
    """Complete configurations that lack some options of others."""
    if len({frozenset(flatten(run.config)) for run in runs}) == 1:
        return list(runs)
    return [replace(run, config=completed(run.config)) for run in runs]


def same_but_for_seed(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two runs differ only in their seed.

    >>> same_but_for_seed({"seed": 0, "iterations": 5}, {"seed": 1, "iterations": 5})
    True
    >>> same_but_for_seed({"seed": 0, "iterations": 5}, {"seed": 1, "iterations": 9})
    False
    """
    return not config_differences(first, second, IGNORED)


def group_name(names: Sequence[str]) -> str:
    """Return a name for runs of several seeds, the common beginning of their names.

    >>> group_name(["demo-seed1", "demo-seed12"]), group_name(["demo-seed0"]), group_name(["a", "b"])
    ('demo', 'demo-seed0', 'a, b')
    """
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return SEED_AT_THE_END.sub("", "".join(letters[0] for letters in same)) or ", ".join(names)


def differing_settings(groups: Sequence[Group]) -> list[tuple[str, tuple[str, ...]]]:
    """Return each differing setting, with every group's value as text."""
    flat = [flatten(group.config) for group in groups]
    keys = {
        key for other in groups[1:] for key, *_ in config_differences(groups[0].config, other.config, IGNORED)
    }
    return [
        (key, tuple(_shown(settings[key]) if key in settings else MISSING for settings in flat))
        for key in dict.fromkeys(key for settings in flat for key in settings)
        if key in keys
    ]


def _shown(value: Any) -> str:
    """
    >>> _shown(None), _shown(0.001), _shown([{"name": "math", "weight": 1.0}])
    ('null', '0.001', '{name: math, weight: 1.0}')
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "[]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
