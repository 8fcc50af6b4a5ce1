"""Read an RL4LMs file as sections, take their keys one by one, and refuse every remaining key.

RL4LMs ignores a mistyped key, or fails an hour later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import InputError, did_you_mean
from contracts.secrets.secret_values import remember_in
from contracts.whole_texts import expect_whole

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Source:
    """The file of all sections."""

    file: str
    lines: Mapping[str, int]  # line of each dotted key
    oddities: list[str] = field(default_factory=list)  # values that were corrected while reading


def read(path: Path) -> Section:
    """Read the whole file.

    Raises:
        InputError: the file is missing, is not YAML (the message names line and column), has a key twice, or
            is not a mapping of sections.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_lines(node, "", path))
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(_yaml_error(path, error)) from None
    except (ValueError, RecursionError) as error:  # an invalid date; a mapping that contains itself
        raise InputError(f"{path}: not YAML that can be read: {error}") from None
    if not isinstance(values, Mapping):
        raise InputError(
            f"{path}: expected sections such as tokenizer, datapool and alg, got {shown(values)[:60]}"
        )
    expect_whole(values, str(path))
    remember_in(values)
    return Section(values, "", Source(str(path), lines))


class Section:
    """Mapping in the file.

    Example: with `env: {n_envs: 10}`, `section.part("env").integer("n_envs", 1)` is 10.
    """

    def __init__(self, values: Mapping[str, Any], where: str, source: Source) -> None:
        self._values, self.where, self.source = values, where, source
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def key(self, key: str) -> str:
        """Return the key with the sections around it."""
        return f"{self.where}.{key}" if self.where else key

    def place(self, key: str) -> str:
        """Return file, line and key, for messages."""
        full = self.key(key)
        line = self.source.lines.get(full)
        return f"{self.source.file}{f', line {line}' if line else ''}: {full}"

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value unchanged, and mark the key as known.

        Raises:
            InputError: the key is required, and is missing.
        """
        self._known.append(key)
        if key in self._values:
            return self._values[key]
        if default is REQUIRED:
            raise InputError(f"{self.place(key)} is required, and was not given")
        return default

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        return self._typed(key, default, str, "a text")

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        return self._typed(key, default, bool, "true or false")

    def integer(self, key: str, default: Any = REQUIRED, *, least: int | None = None) -> Any:
        value = self._typed(key, default, int, "a whole number")
        if value is not None and least is not None and value < least:
            raise self.refuse(key, f"expected {least} or more")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        value = self._typed(key, default, (int, float), "a number")
        if value is not None and not math.isfinite(value):
            raise self.refuse(key, "expected a number")
        return value

    def part(self, key: str, default: Any = REQUIRED) -> Section:
        """Return a section inside this one; with a default, null or no key is an empty section.

        Raises:
            InputError: the value is not a mapping, or is a sweep.
        """
        value = self.take(key, default)
        if value is None and default is not REQUIRED:
            value = {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self.place(key)}: expected keys and values, got {shown(value)[:60]}")
        if value.get("expand") is True:
            raise InputError(
                f"{self.place(key)} is a sweep (expand: True). Import the file with one value, then sweep "
                "with: whetstone train -m KEY=A,B"
            )
        return Section(value, self.key(key), self.source)

    def parts(self, key: str) -> list[Section]:
        """Return a list of sections, which may be empty.

        Raises:
            InputError: the value is not a list of mappings.
        """
        value = self.take(key, None) or []
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InputError(f"{self.place(key)}: expected a list, got {shown(value)[:60]}")
        sections = []
        for number, entry in enumerate(value):
            if not isinstance(entry, Mapping):
                raise InputError(f"{self.place(f'{key}.{number}')}: expected an id, got {shown(entry)[:60]}")
            sections.append(Section(entry, self.key(f"{key}.{number}"), self.source))
        return sections

    def says(self, key: str, default: Any = None, whose: str = "RL4LMs'") -> str:
        """Return the table's text: the file's value, or a note about the default.

        Args:
            default: the value if the file has none; None: there is no fixed default.
            whose: the default's owner.
        """
        if key in self._values:
            return shown(self._values[key])
        return "not given" if default is None else f"{whose} default, {shown(default)}"

    def left(self) -> dict[str, Any]:
        """Return the remaining keys."""
        return {key: value for key, value in self._values.items() if key not in self._known}

    def finish(self) -> None:
        """Refuse the remaining keys.

        Raises:
            InputError: a key is unknown; the message names its line and the nearest known key.
        """
        for key in self.left():
            raise InputError(
                f"{self.place(str(key))}: RL4LMs has no such key{did_you_mean(str(key), self._known)}"
            )

    def refuse(self, key: str, why: str) -> InputError:
        return InputError(f"{self.place(key)}: got {shown(self._values.get(key))}; {why}")

    def _typed(self, key: str, default: Any, kind: Any, expected: str) -> Any:
        value = self.take(key, default)
        if key not in self._values or (value is None and default is None):
            return value
        value = self._mended(key, value, kind)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.place(key)}: got {shown(value)!r}; expected {expected}")
        return value

    def _mended(self, key: str, value: Any, kind: Any) -> Any:
        """Correct a value that YAML reads as text, such as `True,` with a comma or `1e-6` without a point."""
        if not isinstance(value, str) or kind is str:
            return value
        meant = _meant(value.strip().rstrip(",").strip(), kind)
        if meant is None:
            return value
        why = "a stray comma makes it a text" if "," in value else "YAML reads it as a text, not a number"
        self.source.oddities.append(
            f"{self.key(key)}: {value!r}: {why}. RL4LMs passes the text on without a check; Whetstone reads "
            f"{shown(meant)}"
        )
        return meant


def _meant(text: str, kind: Any) -> Any:
    """Return the boolean or number that a text spells, or None.

    >>> _meant("True", bool), _meant("1e-6", float), _meant("50", int), _meant("many", int)
    (True, 1e-06, 50, None)
    """
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    try:
        number = float(text)
    except ValueError:
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number


def _lines(node: Any, where: str, path: Path) -> list[tuple[str, int]]:
    """Return the line of each dotted key below `node`.

    Raises:
        InputError: a mapping has a key twice; YAML would silently take the second.
    """
    lines: list[tuple[str, int]] = []
    children = []
    if node is None:
        return lines
    if node.id == "mapping":
        children = [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
    elif node.id == "sequence":
        children = [(str(number), item.start_mark.line + 1, item) for number, item in enumerate(node.value)]
    seen: dict[str, int] = {}
    for name, line, value in children:
        key = f"{where}.{name}" if where else name
        if name in seen:
            raise InputError(f"{path}, line {line}: {key} is given twice, first in line {seen[name]}")
        seen[name] = line
        lines += [(key, line), *_lines(value, key, path)]
    return lines


def _yaml_error(path: Path, error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error).split("\n")[0]
    return f"{path}{place}: not valid YAML: {problem}"


def shown(value: Any) -> str:
    """Write a value as YAML on one line.

    >>> shown([{"name": "meteor"}]), shown(None), shown(1e-06)
    ('[{name: meteor}]', 'null', '1.0e-06')
    """
    if isinstance(value, str):
        return value
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("...").strip()
