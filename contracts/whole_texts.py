"""Refusal of texts with half of a surrogate pair, and of files that are not UTF-8.

JSON can write half of a pair (`"\\ud83d"`) and Python can hold it, but no tokenizer or file accepts it. A
reader refuses a file with half of a pair; the error names the line.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contracts.errors import InputError

_HALF = re.compile("[\ud800-\udfff]")


def json_of(text: str, where: str) -> Any:
    """Parse JSON, and refuse half of a surrogate pair in any of its texts.

    Raises:
        InputError: a text has half of a surrogate pair; the message begins with `where`.
        json.JSONDecodeError: the text is not JSON.
    """
    parsed = json.loads(text)
    expect_whole(parsed, where)
    return parsed


def lines_of(file: Iterable[str], where: str) -> Iterator[str]:
    """Yield the lines of an open file, without their line ends.

    Raises:
        InputError: a line is not UTF-8; the message begins with `where`.
    """
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            # If the locale is not UTF-8's, Python reads an invalid byte as half of a pair.
            if _HALF.search(line):
                raise InputError(f"{where}, line {number}: is no UTF-8")
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        number += 1 + error.object.count(b"\n", 0, error.start)  # Python decodes a file some lines ahead
        raise InputError(
            f"{where}, line {number}: is no UTF-8 (byte 0x{error.object[error.start]:02x})"
        ) from None


def expect_whole(value: Any, where: str, inside: str = "") -> None:
    """Refuse a value with half of a surrogate pair in one of its texts.

    Raises:
        InputError: a text in `value` has half of a surrogate pair; the message begins with `where`.
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
