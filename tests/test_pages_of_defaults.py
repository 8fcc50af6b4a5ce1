"""Pages of docs/ agree with the code: the defaults of options that they name, and what their tables list."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo

from contracts.components import find
from contracts.settings import Settings
from learner.algorithms import ALGORITHMS
from reward_servers.graders import METRICS, REWARDS
from reward_servers.settings import ServerSettings
from rollout_workers.environments import ENVIRONMENTS
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.frozen_partner import FrozenPartner
from services.commands.listing import options_of
from services.config.settings import RunSettings
from services.data.tasks import TASKS
from services.studies.annotation.pass_rate_settings import PassRateSettings
from services.studies.annotation.settings import AnnotateSettings
from services.training.reward_training.settings import TrainRewardSettings

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
NAME = r"`([a-z_]+(?:\.[a-z_]+)*)`"
VALUE = r"(\d[\d,]*(?:\.\d+)?|true|false)"
INLINE = re.compile(rf"{NAME} \((?:default )?{VALUE}(?: s)?[):;]")
ROW = re.compile(rf"^\|? *({NAME}(?:, {NAME})*) *\| *([^|\n]+?) *(?:\||$)", re.MULTILINE)
HEADED_ROW = re.compile(r"^\|?[^|\n]*\| *default *\|.*\n(?:.*\|.*\n)+", re.MULTILINE)
CLASSES: tuple[tuple[str, Any], ...] = (
    ("", RunSettings),
    ("environment.", EnvironmentSettings),
    ("reward_servers.default.", ServerSettings),
    ("", AnnotateSettings),
    ("", PassRateSettings),
    ("", TrainRewardSettings),
    ("", FrozenPartner),
)
TABLES = {
    "algorithm": ALGORITHMS,
    "task": TASKS,
    "reward": REWARDS,
    "metrics": METRICS,
    "environment": ENVIRONMENTS,
}
EXPONENTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def nested(kind: Any, prefix: str = "", instance: Settings | None = None) -> Iterator[tuple[str, Any]]:
    """(`section.option`, default) of all options of a class of settings, those within others too."""
    for name, field in kind.model_fields.items():
        default = getattr(instance, name) if instance is not None else default_of(field)
        for option_kind in (field.annotation, *get_args(field.annotation)):
            if is_settings(option_kind):
                inner = default if isinstance(default, option_kind) else None
                yield from nested(option_kind, f"{prefix}{name}.", inner)
        yield f"{prefix}{name}", default


def is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def default_of(field: FieldInfo) -> Any:
    return "required" if field.is_required() else field.get_default(call_default_factory=True)


@pytest.fixture(scope="module")
def defaults() -> dict[str, list[Any]]:
    """All defaults of an option, by its whole name and by the last part of it alone."""
    rows = [entry for prefix, kind in CLASSES for entry in nested(kind, prefix)]
    for kind, table in TABLES.items():
        for address in table.values():
            options = options_of(find(kind, address, {}))
            rows += [
                (f"{kind}.{option}", option_row.get("default")) for option, option_row in options.items()
            ]
    by_name: dict[str, list[Any]] = defaultdict(list)
    for name, default in rows:
        for known_as in {name, name.rpartition(".")[2]}:
            by_name[known_as].append(default)
    return by_name


def written(text: str) -> Iterator[tuple[str, str]]:
    """(option, default) wherever a page says one."""
    yield from INLINE.findall(text)
    for table in HEADED_ROW.findall(text):
        for row in ROW.findall(table):
            names, values = re.findall(NAME, row[0]), row[-1].split(", ")
            if len(names) == len(values):
                yield from zip(names, values, strict=True)


def number(text: str) -> float | bool | None:
    """Defaults on a page that are numbers or truth values; others are told in words.

    >>> [number(text) for text in ("2,000", "2e-5", "true", "2²⁴", "`auto`", "all")]
    [2000.0, 2e-05, True, 16777216.0, None, None]
    """
    bare = text.strip("` ").replace(",", "")
    if power := re.fullmatch(r"(\d)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", bare):
        return float(power[1]) ** int(power[2].translate(EXPONENTS))
    if bare in ("true", "false"):
        return bare == "true"
    return float(bare) if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", bare) else None


def test_pages_are_read(defaults: dict[str, list[Any]]) -> None:
    """Else the test below could not fail."""
    names = [name for page in PAGES for name, value in written(page.read_text()) if number(value) is not None]
    assert len([name for name in names if name in defaults]) > 100
    assert {"rollout.stall_timeout_s", "environment.step_timeout_s", "timeout_s", "batch_size"} <= set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_defaults_on_a_page_are_those_of_the_settings(page: Path, defaults: dict[str, list[Any]]) -> None:
    wrong = [
        f"`{name}`: the page says {value}, the settings {known}"
        for name, value in written(page.read_text())
        if (shown := number(value)) is not None and (known := defaults.get(name)) and shown not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_variables_are_listed_once_and_whole() -> None:
    docs = PAGES[0].parent
    variables = re.findall(r"`([A-Z_]{4,})`(?=[^|\n]* \|)", (docs / "set-up.md").read_text(), re.MULTILINE)
    assert len(set(variables)) == len(variables) > 10
