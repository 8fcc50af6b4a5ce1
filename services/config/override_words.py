"""Parse one `key=value` of the command line with Hydra's parser, in any script.

Hydra's grammar knows letters, digits and some ASCII signs. Here all other characters count as letters, in
keys and in values: `output_dir=läufe`, `task.data_files={train: 数据.jsonl}`. Quotes, commas, brackets,
colons, `=` and `${…}` keep their meaning.
"""

from collections.abc import Iterator
from unicodedata import normalize

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from contracts.errors import InputError

LETTER = "z"  # occurs in no reserved word, so that "fälse" is not read as "false"
QUOTES = "\"'"
CONTROLS = frozenset(map(chr, range(32))) - {"\t"}
STRAY = CONTROLS | frozenset("!#&;<>^`~\x7f")  # ASCII that Hydra's grammar does not use in values


class _Lettered(str):
    """Text whose foreign characters the lexer sees as letters. Values are slices, so they stay whole."""

    def __iter__(self) -> Iterator[str]:
        begins = self.find("=")
        quote, before = "", ""  # open quote, and previous character
        for place, character in enumerate(str.__iter__(self)):
            is_value = place > begins >= 0  # before a key, ~ deletes
            is_letter = not character.isascii() or (is_value and character in STRAY)
            if is_value and character in QUOTES and before != "\\":
                if quote:
                    quote = "" if character == quote else quote
                elif before.isalnum():  # an apostrophe
                    is_letter = True
                else:
                    quote = character
            before = character
            yield LETTER if is_letter else character


def parse(text: str) -> Override:
    """Parse one `key=value` of the command line.

    >>> parse("task.data_files={train: dätä.jsonl, test: [a b, ada's 数据]}").value()
    {'train': 'dätä.jsonl', 'test': ['a b', "ada's 数据"]}

    Raises:
        InputError: the text is not `key=value`.
    """
    try:
        override = OverridesParser.create().parse_override(_Lettered(text))
    except HydraException as error:
        if text.startswith("-"):
            word = text.lstrip("-")
            example = word if "=" in word else f"{word.replace('-', '_') or 'KEY'}=VALUE"
            raise InputError(f"{text}: expected KEY=VALUE without dashes, such as {example}") from None
        raise InputError(
            f"{text}: expected KEY=VALUE: {first_line(error)}. "
            f"Put a value that contains = , or brackets in quotes: 'KEY=\"VALUE\"'"
        ) from None
    if override.is_delete() or override.package is not None:
        raise InputError(f"{text}: expected KEY=VALUE; a key can't be deleted or moved")
    if not override.key_or_group:
        raise InputError(f"{text}: expected KEY=VALUE; the key is missing")
    override.input_line = text
    override.key_or_group = normalize("NFC", override.key_or_group)
    return override


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().split("\n")[0]
