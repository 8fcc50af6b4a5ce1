"""Read sets of reference texts from JSON Lines, for rewards that need more than a batch's references."""

import json
from pathlib import Path

from contracts.errors import InputError
from contracts.whole_texts import json_of

EXPECTED = 'expected lines such as {"references": ["…", "…"]}'


def read_reference_sets(file: str) -> list[list[str]]:
    """Return the references of each line, in order; ignore other keys.

    Raises:
        InputError: the file can't be read, or a line is not an object with a list of texts `references`.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: can't be read as text: {error}; {EXPECTED}") from None
    reference_sets = [
        _references(line, f"{file}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()
    ]
    if not reference_sets:
        raise InputError(f"{file}: is empty; {EXPECTED}")
    return reference_sets


def _references(line: str, where: str) -> list[str]:
    try:
        row = json_of(line, where)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: is not JSON: {error.msg} at column {error.colno}") from None
    references = row.get("references") if isinstance(row, dict) else None
    if not isinstance(references, list) or not references or not all(isinstance(r, str) for r in references):
        raise InputError(f"{where}: got {line.strip()[:80]}; {EXPECTED}")
    return references
