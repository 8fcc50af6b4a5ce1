"""The configuration tree of a run: Hydra composes the files in conf/, then the command line is laid over it.

    experiment=NAME, model=NAME, cluster=NAME    choose a file of that group
    experiment=FILE.yaml                         an experiment of one's own, wherever it lies
    algorithm=NAME, task=NAME, environment=NAME  likewise; NAME may be package.module:Class
    reward=NAME, reward=[{name: NAME, …}, …]     replace what was there; metrics likewise
    data=FOLDER                                  data.folder=FOLDER; a task that nobody names is the data's
    reward.LABEL.OPTION=VALUE                    of a list of rewards the one with that label or name
    a.b=VALUE                                    sets an option, in Hydra's grammar of values

What is unknown is refused: group choices here, keys when `RunSettings` types the tree.
"""

import shutil
import tempfile
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from contracts.errors import InputError, did_you_mean
from contracts.settings import build
from services.layers import forget_replaced_models, layers
from services.settings import RunSettings

CONF = Path(conf.__file__).parent
# A choice of these from the command line brings no option of another along.
COMPONENTS = ("algorithm", "task", "environment")
GROUPS = (*COMPONENTS, "model", "cluster", "experiment")
SUFFIX, OWN = ".yaml", "of_ones_own"  # an experiment's file, and its name for Hydra
REPLACED = ("reward", "metrics")  # a new value is laid over nothing: options of another reward are not kept

HELP = """whetstone train [KEY=VALUE …]: train a model by reinforcement learning

  whetstone train model.path=gpt2 task=imdb task.data_files=FOLDER reward=sentiment iterations=50
  whetstone train -m model.path=gpt2 seed=0,1,2          one run after another for each value

Choices:
{groups}
  algorithm, task, environment, reward and metrics also take package.module:Class of your own.
Keys, as KEY=VALUE or KEY.OPTION=VALUE (docs/configuration.md has them all):
{keys}
whetstone list tasks|environments|rewards|metrics|algorithms shows what these parts are and their options."""


def run_settings(overrides: list[str]) -> RunSettings:
    """The settings that `whetstone train OVERRIDES` asks for.

    Raises:
        InputError: anything unknown, of the wrong type or range, missing, or not composing.
    """
    return build(RunSettings, compose(overrides), where="")


def compose(overrides: list[str]) -> dict[str, Any]:
    """The configuration as plain data.

    Example: `compose(["algorithm=ppo", "model.path=gpt2"])["algorithm"] == {"name": "ppo"}`

    Raises:
        InputError: an override is no `key=value`, a group has no such choice, or a value does not resolve.
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
        raise InputError(f"configuration: {_first_line(error)}") from None
    return plain


def experiment(name: str) -> DictConfig:
    """What an experiment's file says, laid over that of every run; what it leaves open is `???`.

    Raises:
        InputError: there is no such experiment, or its file is wrong.
    """
    _check_choice("experiment", name)
    try:
        return _of_files({"experiment": name})
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"configuration: {_first_line(error)}") from None


def files_of(overrides: list[str]) -> list[Path]:
    """The YAML files that these overrides, and the experiment among them, are built on: a later one wins."""
    asked, _ = _sorted_out([parse(text) for text in overrides])
    with _files(asked) as files:
        places = layers(CONF, files)
    for group in COMPONENTS:
        if group in asked and (place := f"{group}/{asked[group]}") not in places:
            places = [*(each for each in places if not each.startswith(f"{group}/")), place]
    found = [_place(place, asked) for place in places]
    return [file for file in found if file.is_file()]  # a class of one's own has none


def _place(layer: str, choices: dict[str, str]) -> Path:
    return Path(choices["experiment"]) if layer == f"experiment/{OWN}" else CONF / f"{layer}{SUFFIX}"


def _of_files(choices: dict[str, str]) -> DictConfig:
    with _files(choices) as files:
        tree = _composed(files)
        if choices.get("experiment"):
            found = [layer for layer in layers(CONF, files) if layer.startswith("experiment/")]
            forget_replaced_models(tree, [_place(layer, choices) for layer in found])
    return tree


def _composed(files: list[str]) -> DictConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        tree = hydra_compose("train", overrides=files)
    OmegaConf.set_struct(tree, False)
    return tree


def parse(text: str) -> Override:
    """One `key=value` of the command line, by Hydra's own parser."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise InputError(
            f"{text}: expected KEY=VALUE: {_first_line(error)}. "
            f"A value with = , or brackets of its own goes in quotes: 'KEY=\"VALUE\"'"
        ) from None
    if override.is_delete() or override.package is not None:
        raise InputError(f"{text}: expected KEY=VALUE; nothing can be taken away or moved")
    return override


def print_help(_argv: list[str]) -> int:
    """`whetstone train --help`."""
    groups = "\n".join(f"  {group + '=':<13}{', '.join(choices_of(group))}" for group in GROUPS)
    names = ", ".join(name for name in RunSettings.model_fields if name not in COMPONENTS)
    keys = textwrap.fill(names, width=100, initial_indent="  ", subsequent_indent="  ")
    print(HELP.format(groups=groups, keys=keys))
    return 0


def choices_of(group: str) -> list[str]:
    """The files of a configuration group, by name."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _sorted_out(overrides: list[Override]) -> tuple[dict[str, str], list[Override]]:
    """Which file each group is to take, and the options to set."""
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
        name = "null" if name is None else str(name)
        _check_choice(group, name)
        choices[group] = name
    return choices, values


@contextmanager
def _files(choices: dict[str, str]) -> Iterator[list[str]]:
    """Hydra's overrides for the chosen files. An experiment of one's own, given as a file, is laid into a
    folder that Hydra searches, too, under a name that no other has.
    """
    files = {group: name for group, name in choices.items() if group not in COMPONENTS}
    own = files.get("experiment", "")
    if not own.endswith(SUFFIX):
        yield [f"{group}={name}" for group, name in files.items()]
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "experiment" / f"{OWN}{SUFFIX}"
        place.parent.mkdir()
        shutil.copyfile(own, place)
        files["experiment"] = OWN
        yield [f"{group}={name}" for group, name in files.items()] + [f"hydra.searchpath=[file://{folder}]"]


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
        hint = "\nA class of your own is written package.module:Class."
    elif group == "model":
        hint = f"\nA model is given by its folder or hub name: model.path={name}"
    raise InputError(f"{group}={name}: no such {group}{did_you_mean(name, known)}{hint}")


def _choose(tree: DictConfig, group: str, name: str) -> None:
    """Put another algorithm, task or environment in; the same one keeps what an experiment says about it."""
    file = CONF / group / f"{name}.yaml"
    chosen = OmegaConf.load(file) if file.exists() else OmegaConf.create({"name": name})
    if tree[group].name != chosen.name:
        tree[group] = chosen


def _take_from_data(tree: DictConfig, named: Collection[str]) -> None:
    """Of annotated data the task that nobody names, and with it the rewards, unless others are asked for."""
    data = tree.get("data")
    folder = data if isinstance(data, str) or data is None else data.get("folder")
    if folder is None:
        return
    from services.data_task import laid_under, rewards_of, task_of  # imports pyarrow

    (default,) = (each["task"] for each in OmegaConf.load(CONF / "train.yaml").defaults if "task" in each)
    if "task" in named or tree.task != {"name": default}:
        options = {key.removeprefix("task.") for key in named if key.startswith("task.")}
        tree["task"] = laid_under(Path(folder), OmegaConf.to_container(tree.task), options)
    elif found := task_of(Path(folder)):
        tree["task"] = found
        if tree.get("reward") is None and not any(key.partition(".")[0] == "reward" for key in named):
            tree["reward"] = rewards_of(Path(folder)) or None


def _forget_the_tokenizer(tree: DictConfig, given: Collection[str]) -> None:
    """Drop an experiment's tokenizer, revision and classes where another model is given alone.

    They belong to the experiment's model: the other one brings its own tokenizer.
    """
    if "model.path" not in given or "model" in given:
        return
    for key in ("tokenizer", "revision"):
        if f"model.{key}" not in given and tree.get("model") is not None:
            tree.model.pop(key, None)


def _count_in_iterations(tree: DictConfig, asked: Collection[str]) -> None:
    """Let what is asked for in iterations win over what an experiment says in epochs of its data."""
    data = tree.get("data")
    if not OmegaConf.is_dict(data):
        return
    if "evaluate_every" in asked or "iterations" in asked:
        data.pop("evaluations_per_epoch", None)
    if "iterations" in asked:
        data.pop("num_epochs", None)


def _root(override: Override) -> str:
    return str(override.key_or_group).partition(".")[0]


def _set(tree: DictConfig, override: Override) -> None:
    key, value = override.key_or_group, override.value()
    root, _, rest = key.partition(".")
    if set_in_list(tree, override):
        return
    if root in REPLACED and rest and isinstance(tree.get(root), str):
        tree[root] = {"name": tree[root]}  # so that options can stand beside it
    if root == "data":  # a folder alone, here or in an experiment: so that options can stand beside it
        if isinstance(tree.get("data"), str):
            tree["data"] = {"folder": tree["data"]}
        if not rest and isinstance(value, str):
            value = {"folder": value}
    if key in COMPONENTS:  # a whole mapping
        tree[key] = value
        return
    OmegaConf.update(tree, key, value, merge=root not in REPLACED, force_add=True)


def set_in_list(tree: DictConfig, override: Override) -> bool:
    """Of a list of rewards or metrics set an option of the one that is labelled or named so:
    `reward.fluency.model=…`. False: this is no such override.

    Raises:
        InputError: there is a list, and none of that label in it.
    """
    root, label, option = [*override.key_or_group.split(".", 2), "", ""][:3]
    if root not in REPLACED or not label or not OmegaConf.is_list(tree.get(root)):
        return False
    parts = [{"name": part} if isinstance(part, str) else part for part in tree[root]]
    labels = [str(part.get("label") or part.get("name")) for part in parts]
    if not option or label not in labels:
        if not labels:
            raise InputError(f"{override.input_line}: {root} is an empty list, so it has no options to set")
        raise InputError(
            f"{override.input_line}: {root} is a list, so say whose option it is: {root}.LABEL.OPTION=…, the "
            f"labels are {', '.join(labels)}"
        )
    tree[root] = parts
    OmegaConf.update(tree[root][labels.index(label)], option, override.value(), merge=False, force_add=True)
    return True


def refuse_missing(tree: DictConfig) -> None:
    missing = sorted(OmegaConf.missing_keys(tree))
    if missing:
        hint = ": a folder in Hugging Face format, or a hub name" if "model.path" in missing else ""
        raise InputError(f"{' and '.join(missing)} is required{hint}. Give {missing[0]}=…")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
