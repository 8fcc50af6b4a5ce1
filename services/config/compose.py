"""Compose the configuration tree of a run: Hydra merges the files in conf/, then the command line overrides.

    model=NAME, cluster=NAME                     choose a file of that group
    experiment=NAME                              a file of that group, or a cell of a file in conf/matrix/
    experiment=FILE.yaml                         a user's own experiment, from any folder
    algorithm=NAME, task=NAME, environment=NAME  choose a component; NAME may be FILE.py:Class or module:Class
    reward=NAME, reward=[{name: NAME, …}, …]     replace all rewards; metrics likewise
    curriculum=NAME                              curriculum.by=NAME
    data=FOLDER                                  data.folder=FOLDER; without task=, also the data's task
    reward.LABEL.OPTION=VALUE                    set an option of the reward with that label or name
    a.b=VALUE                                    set an option, in Hydra's grammar of values

Unknown group choices are rejected here. `RunSettings` rejects unknown keys.
"""

import re
import shutil
import tempfile
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from contracts.errors import InputError, did_you_mean
from contracts.settings import build
from learner.algorithms import SYNONYMS
from reward_servers.settings import label_of
from services.config.component_settings import TABLES, our_name
from services.config.layers import OWN, SUFFIX, file_of, forget_replaced_models, layers, said
from services.config.matrix import lay_into, matrix_experiments
from services.config.other_trainers import in_our_words
from services.config.override_words import first_line, parse
from services.config.settings import RunSettings
from services.runs.claim import flatten

CONF = Path(conf.__file__).parent
# If the command line chooses another of these, the former one's options are dropped.
COMPONENTS = ("algorithm", "task", "environment")
GROUPS = (*COMPONENTS, "model", "cluster", "experiment")
BARE = {"data": "folder", "curriculum": "by"}  # option that a bare value sets
HINTS = {  # hints by the end of a required key
    "model.path": "FOLDER, in Hugging Face format, or a hub name",
    ".corpus": 'FILE.jsonl, in JSON Lines with a {"text": …} for each training reply',
}
REPLACED = ("reward", "metrics")  # a new value replaces the old one with its options

for _group, (_table, *_) in TABLES.items():  # choices for the command line and `override /task: NAME`
    for _name in _table:
        ConfigStore.instance().store(_name, {"name": _name}, group=_group)
for _name, _ours in SYNONYMS.items():
    ConfigStore.instance().store(_name, {"name": _ours}, group="algorithm")

HELP = """whetstone train [KEY=VALUE …]: train a model by reinforcement learning

  whetstone train model.path=gpt2 task=imdb task.data_files=FOLDER reward=sentiment iterations=50
  whetstone train -m model.path=gpt2 seed=0,1,2          one run after another for each value
  whetstone train --timeline …                           write a trace of all processes, too

Choices:
{groups}
  algorithm, task, environment, reward and metrics also take FILE.py:Class, package.module:Class.
Keys, as KEY=VALUE or KEY.OPTION=VALUE (docs/configuration.md has them all):
{keys}
whetstone list tasks|environments|rewards|metrics|algorithms|experiments: all, with options
whetstone plan KEY=VALUE …: what a run would do, before it starts"""
HELP_WIDTH, INDENT = 100, 15


def run_settings(overrides: list[str]) -> RunSettings:
    """Return the settings of `whetstone train OVERRIDES`.

    Raises:
        InputError: a key is unknown, missing, or of the wrong type or range, or the files do not compose.
    """
    tree = compose(overrides)
    try:
        return build(RunSettings, tree, where="")
    except InputError as error:
        raise InputError(in_our_words(str(error), flatten(tree))) from None


def compose(overrides: list[str]) -> dict[str, Any]:
    """Return the configuration as plain data.

    Example: `compose(["algorithm=ppo", "model.path=gpt2"])["algorithm"] == {"name": "ppo"}`

    Raises:
        InputError: an override is not `key=value`, a group has no such choice, or a value does not resolve.
    """
    choices, values = _sorted_out([parse(text) for text in overrides])
    try:
        tree = _of_files(choices)
        for group in COMPONENTS:
            if group in choices:
                _choose(tree, group, choices[group])
        of_data = [override for override in values if _root(override) == "data"]
        others = [override for override in values if _root(override) != "data"]
        _count_in_iterations(tree, {override.key_or_group for override in values})
        for override in of_data:
            _set(tree, override)
        _take_from_data(tree, {*choices, *(override.key_or_group for override in others)})
        _forget_the_tokenizer(tree, {override.key_or_group for override in others})
        for override in others:
            _set(tree, override)
        refuse_missing(tree)
        plain: dict[str, Any] = OmegaConf.to_container(tree, resolve=True)  # type: ignore[assignment]
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"configuration: {first_line(error)}") from None
    return plain


def experiment(name: str) -> DictConfig:
    """Return an experiment's configuration, merged over the defaults of every run; open values are `???`.

    Raises:
        InputError: there is no such experiment, or its file is wrong.
    """
    _check_choice("experiment", name)
    try:
        return _of_files({"experiment": name})
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"configuration: {first_line(error)}") from None


def files_of(overrides: list[str]) -> list[Path]:
    """Return the YAML files that these overrides and their experiment use; later files win."""
    choices, _ = _sorted_out([parse(text) for text in overrides])
    with _files(choices) as files:
        places = layers(CONF, files)
    paths = [file_of(CONF, place, choices.get("experiment", "")) for place in places]
    return [file for file in paths if file.is_file()]  # algorithms, tasks and environments have no file


def _of_files(choices: dict[str, str]) -> DictConfig:
    with _files(choices) as files:
        tree = _composed(files)
        if chosen := choices.get("experiment"):
            of_experiments = [layer for layer in layers(CONF, files) if layer.startswith("experiment/")]
            forget_replaced_models(tree, [said(CONF, layer, chosen) for layer in of_experiments])
    return tree


def _composed(files: list[str]) -> DictConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        tree = hydra_compose("train", overrides=files)
    OmegaConf.set_struct(tree, False)
    return tree


def print_help(_argv: list[str]) -> int:
    """Print the help of `whetstone train`."""
    groups = "\n".join(_group_help(group) for group in GROUPS)
    names = ", ".join(name for name in RunSettings.model_fields if name not in COMPONENTS)
    keys = textwrap.fill(names, width=_help_width(), initial_indent="  ", subsequent_indent="  ")
    print(HELP.format(groups=groups, keys=keys))
    return 0


def _group_help(group: str) -> str:
    """Return a group's choices, wrapped to the screen's width."""
    names = choices_of(group)
    text = ", ".join(names)
    if group == "experiment":  # too many for a screen
        files = sorted(path.stem for path in (CONF / group).glob(f"*{SUFFIX}"))
        text = (
            f"{', '.join(files)}, and {len(names) - len(files)} published ones, TASK_ALGORITHM; or FILE.yaml"
        )
    start = f"  {group + '=':<{INDENT - 2}}"
    return textwrap.fill(text, _help_width(), initial_indent=start, subsequent_indent=" " * INDENT)


def _help_width() -> int:
    return max(2 * INDENT, min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 24)).columns))


def choices_of(group: str) -> list[str]:
    """Return the names of a configuration group's choices, sorted."""
    if group in TABLES:
        return sorted(TABLES[group][0])
    files = {path.stem for path in (CONF / group).glob(f"*{SUFFIX}")}
    return sorted(files | matrix_experiments(CONF).keys() if group == "experiment" else files)


def _sorted_out(overrides: list[Override]) -> tuple[dict[str, str], list[Override]]:
    """Split overrides into the chosen file of each group, and the options to set."""
    choices, values = {}, []
    for override in overrides:
        if override.is_sweep_override():
            raise InputError(
                f"{override.input_line}: several values make a sweep: whetstone train -m "
                f"{override.input_line}. A list is written {override.key_or_group}=[…]"
            )
        group, name = override.key_or_group, override.value()
        if group not in GROUPS or isinstance(name, dict):
            values.append(override)
            continue
        name = "null" if name is None else our_name(str(name), group)
        _check_choice(group, name)
        choices[group] = name
    return choices, values


@contextmanager
def _files(choices: dict[str, str]) -> Iterator[list[str]]:
    """Yield Hydra's overrides for the chosen files.

    Hydra also searches a temporary folder. The folder holds the user's own experiment under a reserved name,
    and the matrix experiments that are chosen or that the user's file names.
    """
    files = {group: name for group, name in choices.items() if group not in COMPONENTS}
    chosen = files.get("experiment", "null")
    if chosen == "null":
        yield [f"{group}={name}" for group, name in files.items()]
        return
    file = Path(chosen) if chosen.endswith(SUFFIX) else None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "experiment"
        place.mkdir()
        lay_into(place, CONF, chosen if file is None else file.read_text())
        if file is not None:
            shutil.copyfile(file, place / f"{OWN}{SUFFIX}")
            files["experiment"] = OWN
        yield [f"{group}={name}" for group, name in files.items()] + [f'hydra.searchpath=["file://{folder}"]']


def _check_choice(group: str, name: str) -> None:
    if group == "experiment" and name.endswith(SUFFIX):
        if not Path(name).is_file():
            raise InputError(f"experiment={name}: there is no such file")
        return
    known = choices_of(group)
    if name in known or (group == "experiment" and name == "null"):
        return
    if group in COMPONENTS and ":" in name:
        return
    hint = ""
    if group in COMPONENTS:
        hint = "\nA class of your own is written package.module:Class, or FILE.py:Class."
    elif group == "model":
        hint = f"\nA model is given by its folder or hub name: model.path={name}"
    raise InputError(f"{group}={name}: no such {group}{did_you_mean(name, known)}{hint}")


def _choose(tree: DictConfig, group: str, name: str) -> None:
    """Choose an algorithm, task or environment. If it is already chosen, keep its options."""
    if tree[group].name != name:
        tree[group] = {"name": name}


def _take_from_data(tree: DictConfig, named: Collection[str]) -> None:
    if tree.get("data") is None:
        return
    from services.config.data_task import take_from_data  # imports pyarrow

    (default,) = (
        choice["task"] for choice in OmegaConf.load(CONF / "train.yaml").defaults if "task" in choice
    )
    take_from_data(tree, named, default)


def _forget_the_tokenizer(tree: DictConfig, keys: Collection[str]) -> None:
    """Drop an experiment's tokenizer and revision if the command line sets only another `model.path`.

    They belong to the experiment's model, and another model has its own.
    """
    if "model.path" not in keys or "model" in keys:
        return
    for key in ("tokenizer", "revision"):
        if f"model.{key}" not in keys and tree.get("model") is not None:
            tree.model.pop(key, None)


def _count_in_iterations(tree: DictConfig, keys: Collection[str]) -> None:
    """Let `iterations` on the command line win over an experiment's number of epochs."""
    data = tree.get("data")
    if not OmegaConf.is_dict(data):
        return
    if "evaluate_every" in keys or "iterations" in keys:
        data.pop("evaluations_per_epoch", None)
    if "iterations" in keys:
        data.pop("num_epochs", None)


def _root(override: Override) -> str:
    return str(override.key_or_group).partition(".")[0]


def _set(tree: DictConfig, override: Override) -> None:
    key, value = override.key_or_group, override.value()
    root, _, rest = key.partition(".")
    if set_in_list(tree, override):
        return
    _spell_out(tree, key)
    if root in BARE and not rest and isinstance(value, str):
        value = {BARE[root]: value}
    if key in COMPONENTS:  # a whole mapping
        tree[key] = value
        return
    OmegaConf.update(tree, key, value, merge=root not in REPLACED, force_add=True)


def _spell_out(tree: DictConfig, key: str) -> None:
    """Turn bare values above a key into mappings, which can take options."""
    path = key.split(".")
    depth, option = 1, {**BARE, **dict.fromkeys(REPLACED, "name")}.get(path[0])
    if path[:2] == ["task", "parts"]:
        depth, option = 3, "task"
    above = ".".join(path[:depth])
    if option and len(path) > depth and isinstance(bare := OmegaConf.select(tree, above), str):
        OmegaConf.update(tree, above, {option: bare})


def set_in_list(tree: DictConfig, override: Override) -> bool:
    """Set an option of one entry in a list of rewards or metrics, such as `reward.fluency.model=…`.

    Return False if the override is of another kind.

    Raises:
        InputError: no entry of the list has this label or name.
    """
    root, label, option = [*override.key_or_group.split(".", 2), "", ""][:3]
    if root not in REPLACED or not label or not OmegaConf.is_list(tree.get(root)):
        return False
    parts = [{"name": part} if isinstance(part, str) else part for part in tree[root]]
    labels = [label_of(part) for part in parts]
    if not option or label not in labels:
        if not labels:
            raise InputError(f"{override.input_line}: {root} is an empty list, so it has no options to set")
        raise InputError(
            f"{override.input_line}: {root} is a list; expected {root}.LABEL.OPTION=…, the "
            f"labels are {', '.join(labels)}"
        )
    tree[root] = parts
    OmegaConf.update(tree[root][labels.index(label)], option, override.value(), merge=False, force_add=True)
    return True


def refuse_missing(tree: DictConfig) -> None:
    """Raise InputError if the tree has required keys without a value."""
    missing = sorted(_by_label(tree, key) for key in OmegaConf.missing_keys(tree))
    if missing:
        hints = [next((hint for end, hint in HINTS.items() if k.endswith(end)), "…") for k in missing]
        raise InputError(
            "\n".join(
                f"{key} is required. Type {key}={hint}" for key, hint in zip(missing, hints, strict=True)
            )
        )


def _by_label(tree: DictConfig, key: str) -> str:
    """Return the key with a label instead of an entry's number: reward[3].corpus, as a user can type it."""
    if (place := re.fullmatch(r"(\w+)\[(\d+)\](\..+)", key)) is None:
        return key
    part = tree[place[1]][int(place[2])]
    return f"{place[1]}.{label_of(part)}{place[3]}"
