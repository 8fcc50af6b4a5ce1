"""Sources of a recipe's models and data: the hub, the user's folders, or stand-ins.

A run's settings name a model in several places: policy, tokenizer, rewards, metrics. All are replaced.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.runs.provenance import sha256
from services.studies.benchmarks.plan import quoted
from services.studies.reproduction.recipe import Data, Model, Recipe


@dataclass(frozen=True, slots=True)
class Places:
    """Folders by the names of models and data sets; a name without one is the hub's.

    Example: `Places({"gpt2": Path("/models/gpt2")}, {"imdb": Path("/data/imdb")})`
    """

    models: Mapping[str, Path]
    data: Mapping[str, Path]


def find_places(
    recipe: Recipe, models: Path | None, data: Path | None, needed: Collection[str] | None = None
) -> Places:
    """Find each model and data set in the user's folders; check the known digests.

    Args:
        needed: required models and data sets; None: all. Others are optional.

    Raises:
        InputError: a required one is missing or has another digest. The message names what to fetch, and
            its source.
    """
    problems: list[str] = []
    required = {*recipe.models, *recipe.data} if needed is None else needed
    places = Places(
        dict(_paths("--models", recipe.models, models, "config.json", required, problems)),
        dict(_paths("--data", recipe.data, data, "", required, problems)),
    )
    if problems:
        raise InputError(f"the recipe {recipe.name} lacks:\n" + "\n".join(problems))
    return places


def overrides_for(recipe: Recipe, places: Places) -> list[str]:
    """Return the task's overrides for files from the folders or the hub."""
    overrides: list[str] = []
    for name, data_set in recipe.data.items():
        folder = places.data.get(name)
        overrides += (
            data_set.otherwise if folder is None else [f"{data_set.key}={quoted(folder / data_set.file)}"]
        )
    return overrides


def replaced(tree: Mapping[str, Any], folders: Mapping[str, Path]) -> list[str]:
    """Return overrides that replace models' names by folders everywhere in a configuration.

    >>> replaced({"model": {"path": "gpt2"}, "reward": [{"name": "rouge"}]}, {"gpt2": Path("/m/gpt2")})
    ['model.path="/m/gpt2"']
    """
    changed = []
    for key, value in tree.items():
        new = _renamed(value, folders)
        if new == value:
            continue
        if isinstance(value, Mapping):  # one key at a time, so the rest keeps its rules
            changed += [f"{key}.{name}={in_hydra(new[name])}" for name in value if new[name] != value[name]]
        else:
            changed.append(f"{key}={in_hydra(new)}")
    return changed


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a configuration, however deep.

    >>> list(texts_in({"model": {"path": "gpt2"}, "reward": [{"name": "rouge", "weight": 1.0}]}))
    ['gpt2', 'rouge']
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)
    elif isinstance(value, str):
        yield value


def in_hydra(value: Any) -> str:
    """Write a value in the command line's grammar.

    >>> in_hydra([{"name": "rouge", "weight": 0.5, "model": None, "on": True}])
    '[{name: "rouge", weight: 0.5, model: null, on: true}]'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_hydra, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return quoted(value) if isinstance(value, str | Path) else str(value)


def _renamed(value: Any, folders: Mapping[str, Path]) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(inner, folders) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, folders) for inner in value]
    return str(folders[value]) if isinstance(value, str) and value in folders else value


def _paths(
    option: str,
    wanted: Mapping[str, Model | Data],
    folder: Path | None,
    file: str,
    needed: Collection[str],
    problems: list[str],
) -> Iterator[tuple[str, Path]]:
    for name, asset in wanted.items():
        if folder is None:
            if name in needed and not asset.on_hub:
                problems.append(f"  {name}: not on the hub. Fetch it from {asset.where}; {option} FOLDER")
            continue
        path = (folder / name).absolute()
        if not (path / file).exists():
            if name in needed:
                problems.append(f"  {path}: fetch it from {asset.where}{_command(option, name, path, asset)}")
            continue
        if name in needed:
            problems += _wrong_digests(path, asset.sha256)
        yield name, path


def _command(option: str, name: str, path: Path, asset: Model | Data) -> str:
    is_model = option == "--models" and asset.on_hub
    return f" (hf download {name} --local-dir {path})" if is_model else ""


def _wrong_digests(path: Path, expected: Mapping[str, str]) -> Sequence[str]:
    wrong = []
    for name, digest in expected.items():
        file = path / name
        got = sha256(file) if file.is_file() else "no such file"
        if got != digest:
            wrong.append(f"  {file}: expected the SHA-256 {digest}, got {got}: it is another file")
    return wrong
