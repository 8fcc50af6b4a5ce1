"""Where a recipe's models and data come from: the hub, folders of one's own, or stand-ins.

A name of a model stands at several places of a run's settings: policy, tokenizer, rewards, metrics. It is
replaced wherever it stands.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.benchmarks.plan import quoted
from services.reproduction.recipe import Data, Model, Recipe
from services.runs.provenance import sha256


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
    """Find each model and data set below the folders that were given; check the known digests.

    Args:
        needed: models and data sets that must be there; None: all. Others are taken where they are.

    Raises:
        InputError: a needed one is missing, or has another digest. It says what to fetch, and from where.
    """
    problems: list[str] = []
    asked = {*recipe.models, *recipe.data} if needed is None else needed
    found = Places(
        dict(_found("--models", recipe.models, models, "config.json", asked, problems)),
        dict(_found("--data", recipe.data, data, "", asked, problems)),
    )
    if problems:
        raise InputError(f"the recipe {recipe.name} lacks:\n" + "\n".join(problems))
    return found


def overrides_for(recipe: Recipe, places: Places) -> list[str]:
    """Return the overrides that make the task read its files from the folders, or from the hub."""
    found: list[str] = []
    for name, each in recipe.data.items():
        folder = places.data.get(name)
        found += each.otherwise if folder is None else [f"{each.key}={quoted(folder / each.file)}"]
    return found


def replaced(tree: Mapping[str, Any], folders: Mapping[str, Path]) -> list[str]:
    """Return overrides that put folders in place of models' names, wherever these stand in a configuration.

    >>> replaced({"model": {"path": "gpt2"}, "reward": [{"name": "rouge"}]}, {"gpt2": Path("/m/gpt2")})
    ['model.path="/m/gpt2"']
    """
    changed = []
    for key, value in tree.items():
        new = _renamed(value, folders)
        if new == value:
            continue
        if isinstance(value, Mapping):  # a key at a time: the rest keeps its own rules
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
        for each in value:
            yield from texts_in(each)
    elif isinstance(value, str):
        yield value


def in_hydra(value: Any) -> str:
    """Write a value in the grammar of the command line.

    >>> in_hydra([{"name": "rouge", "weight": 0.5, "model": None, "on": True}])
    '[{name: "rouge", weight: 0.5, model: null, on: true}]'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_hydra(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_hydra, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return quoted(value) if isinstance(value, str | Path) else str(value)


def _renamed(value: Any, folders: Mapping[str, Path]) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(each, folders) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, folders) for each in value]
    return str(folders[value]) if isinstance(value, str) and value in folders else value


def _found(
    option: str,
    wanted: Mapping[str, Model | Data],
    folder: Path | None,
    file: str,
    needed: Collection[str],
    problems: list[str],
) -> Iterator[tuple[str, Path]]:
    for name, each in wanted.items():
        if folder is None:
            if name in needed and not each.on_hub:
                problems.append(f"  {name}: not on the hub. Fetch it from {each.where}; {option} FOLDER")
            continue
        path = (folder / name).absolute()
        if not (path / file).exists():
            if name in needed:
                problems.append(f"  {path}: fetch it from {each.where}{_command(option, name, path, each)}")
            continue
        if name in needed:
            problems += _wrong_digests(path, each.sha256)
        yield name, path


def _command(option: str, name: str, path: Path, each: Model | Data) -> str:
    is_model = option == "--models" and each.on_hub
    return f" (hf download {name} --local-dir {path})" if is_model else ""


def _wrong_digests(path: Path, expected: Mapping[str, str]) -> Sequence[str]:
    wrong = []
    for name, digest in expected.items():
        file = path / name
        got = sha256(file) if file.is_file() else "no such file"
        if got != digest:
            wrong.append(f"  {file}: expected the SHA-256 {digest}, got {got}: it is another file")
    return wrong
