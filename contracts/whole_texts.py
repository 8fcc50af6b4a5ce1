"""Half of a surrogate pair: JSON can write it (`"\\ud83d"`), Python holds it, no tokenizer or file takes it.

A file of a user's that has one is refused where it is read, with its line.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contracts.errors import InputError

_HALF = re.compile("[\ud800-\udfff]")


def json_of(text: str, where: str) -> Any:
    """As `json.loads`, with whole texts alone.

    Raises:
        InputError: a text in it has half of a surrogate pair; begins with `where`.
        json.JSONDecodeError: it is not JSON.
    """
    found = json.loads(text)
    expect_whole(found, where)
    return found


def lines_of(file: Iterable[str], where: str) -> Iterator[str]:
    """The lines of an open file, without their ends.

    Raises:
        InputError: one of them is no UTF-8; begins with `where`.
    """
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            # A byte that is no UTF-8 comes as half of a pair where the locale is not UTF-8's.
            if _HALF.search(line):
                raise InputError(f"{where}, line {number}: is no UTF-8")
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        number += 1 + error.object.count(b"\n", 0, error.start)  # a file is decoded some lines ahead
        raise InputError(
            f"{where}, line {number}: is no UTF-8 (byte 0x{error.object[error.start]:02x})"
        ) from None


def expect_whole(value: Any, where: str, inside: str = "") -> None:
    """
    Raises:
        InputError: a text in `value` has half of a surrogate pair; begins with `where`.
    """
    if isinstance(value, str):
        if half := _HALF.search(value):
            column = f" '{inside}'" if inside else ""
            raise InputError(
                f"{where}: the text{column} has half of a surrogate pair, \\u{ord(half.group()):04x}, at "
                f"character {half.start() + 1}: that is no letter. Expected both halves, such as "
                "\\ud83d\\ude00, or none"
            )
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            expect_whole(str(key), where, "a column's name")
            expect_whole(inner, where, f"{inside}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            expect_whole(inner, where, f"{inside}[{place}]")
