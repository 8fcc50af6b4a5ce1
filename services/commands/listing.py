"""`whetstone list [KIND] [--json]`: print built-in components with their options, or the keys of a run."""

import argparse
import json
import sys
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from contracts.components import find
from contracts.errors import InputError, did_you_mean
from contracts.settings import Settings
from learner.algorithms import ALGORITHMS
from reward_servers.graders import METRICS, REWARDS
from reward_servers.requirements import missing, requires
from rollout_workers.environments import ENVIRONMENTS
from services.data.tasks import TASKS
from services.data.tasks.base import SIDE_KEY

TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    "tasks": ("task", TASKS),
    "rewards": ("reward", REWARDS),
    "metrics": ("metrics", METRICS),
    "algorithms": ("algorithm", ALGORITHMS),
    "environments": ("environment", ENVIRONMENTS),
}
KINDS = tuple(TABLES)
EXPERIMENTS = "experiments"  # files have only names
KEYS = "keys"
ALL = (*KINDS, EXPERIMENTS, KEYS)
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("whetstone list", description=__doc__)
    parser.add_argument("kind", nargs="?", metavar="|".join(ALL), help="without one: the names of all")
    parser.add_argument("section", nargs="?", help="of keys: a section alone, such as rollout")
    parser.add_argument("--json", action="store_true", help="an array of name, description, options")
    arguments = parser.parse_args(argv)
    kind = arguments.kind
    if arguments.section is not None and kind != KEYS:
        raise InputError(f"whetstone list {kind} {arguments.section}: only keys have sections")
    if kind == KEYS:
        _print_keys(arguments.section, as_json=arguments.json)
        return 0
    if kind == EXPERIMENTS:
        _print_experiments(as_json=arguments.json)
        return 0
    if kind is not None and kind not in KINDS:
        raise InputError(f"{kind}: no such kind{did_you_mean(kind, ALL)}")
    if arguments.json:
        by_kind = {name: blocks(name) for name in KINDS}
        print(json.dumps(by_kind if kind is None else by_kind[kind], indent=2))
    elif kind is None:
        for name in KINDS:
            print(f"{name:<14}{', '.join(TABLES[name][1])}")
    else:
        _print_blocks(blocks(kind), key=TABLES[kind][0])
    return 0


def _print_keys(section: str | None, *, as_json: bool) -> None:
    from services.commands.keys import keys_of_a_run, print_keys  # imports Hydra

    keys = keys_of_a_run(section)
    if as_json:
        print(json.dumps([asdict(key) for key in keys], indent=2))
    else:
        print_keys(keys)


def _print_experiments(*, as_json: bool) -> None:
    from services.config.compose import choices_of  # imports Hydra

    names = choices_of("experiment")
    print(json.dumps(names, indent=2) if as_json else "\n".join(names))


def blocks(kind: str) -> list[dict[str, Any]]:
    """Return the built-in components of one of `KINDS`.

    Example of one: `{"name": "rouge", "description": "ROUGE F1 …", "options": {"rouge_type":
    {"type": "'rouge1' | 'rouge2' | …", "default": "rougeL"}}}`. A required option has no default.
    A component with further requirements lists their names in `requires`. `missing` holds the command that
    installs each missing one.
    """
    key, table = TABLES[kind]
    modules = Counter(address.split(":")[0] for address in table.values())
    shared = {name for name, address in table.items() if modules[address.split(":")[0]] > 1}
    return [_block(key, name, find(key, name, table), in_shared_file=name in shared) for name in table]


def options_of(settings: type[Settings], owner: Any = None, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return a component's options, with dotted names for nested settings.

    `owner` is the object with the nested settings' defaults; None: the class itself.
    """
    options: dict[str, dict[str, Any]] = {}
    for name, field in settings.model_fields.items():
        required = owner is None and field.is_required()
        default = None if required else getattr(owner, name, field.get_default(call_default_factory=True))
        if isinstance(default, Settings):
            options |= options_of(type(default), default, f"{prefix}{name}.")
        else:
            shown = list(default) if isinstance(default, tuple) else default
            options[prefix + name] = {"type": _type_of(field), **({} if required else {"default": shown})}
    return options


def _block(kind: str, name: str, component: type, *, in_shared_file: bool) -> dict[str, Any]:
    of_file, of_class = sys.modules[component.__module__].__doc__, component.__doc__
    text = (of_class if in_shared_file else of_file or of_class) or ""
    options = options_of(component) if issubclass(component, Settings) else {}
    if kind == "task":
        side = getattr(component, SIDE_KEY, "left")
        options[SIDE_KEY] = {"type": "'left' | 'right', or one for each split", "default": side}
    block = {"name": name, "description": text.strip().split("\n")[0], "options": options}
    if needed := requires(component):
        block["requires"] = list(needed)
        block["missing"] = {library.name: library.remedy for library in missing(needed)}
    return block


def _type_of(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in BOUNDS.items()
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: Any) -> str:
    """Return a type as users write it.

    >>> _type_name(Literal["a", "b"] | None)
    "'a' | 'b' | null"
    >>> _type_name(tuple[str, ...])
    'list of str'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin in (tuple, list):
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _print_blocks(listed: list[dict[str, Any]], key: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from services.terminal.screens import Screen

    console = Screen(highlight=False, markup=True)
    for block in listed:
        console.print(f"[bold]{escape(block['name'])}[/bold]: {escape(block['description'])}")
        for name in block.get("requires", ()):
            remedy = block["missing"].get(name)
            console.print(f"  needs {name}: " + (f"missing; {escape(remedy)}" if remedy else "is there"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, option in block["options"].items():
            default = json.dumps(option["default"]) if "default" in option else "required"
            table.add_row(
                "", f"[cyan]{escape(f'{key}.{name}')}[/cyan]", escape(default), escape(option["type"])
            )
        if block["options"]:
            console.print(table)
