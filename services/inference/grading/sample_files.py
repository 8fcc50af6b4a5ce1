"""Read samples from JSON Lines files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.conversations.messages import MESSAGES, conversation, is_conversation, text_of
from contracts.errors import InputError, there_are
from contracts.scores import Sample
from contracts.whole_texts import json_of


def read_samples(predictions: Path, references: Path | None) -> list[Sample]:
    """Read a sample from each line: `{"prediction": …}`, optionally with prompt, references, meta and group.

    A prompt is a text, or a list of messages.

    A file of references has a line with `references` for each prediction. Its prompt, meta or group fills
    gaps in the prediction. Lines without a group share one if their prompts are equal.

    Raises:
        InputError: a file can't be used; the message names the file, the line and the fault.
    """
    rows = _json_lines(predictions, required="prediction")
    if references is not None:
        more = _json_lines(references, required="references")
        if len(more) != len(rows):
            raise InputError(
                f"{predictions} has {len(rows)} lines and {references} has {len(more)}; "
                "line n of one belongs to line n of the other"
            )
        rows = [
            {**extra, **row, "references": extra["references"]} for row, extra in zip(rows, more, strict=True)
        ]
    first: dict[str, int] = {}  # each prompt's first line
    for line, row in enumerate(rows, start=1):
        prompt = row.get("prompt")
        key = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
        at = first.setdefault(key, line) if prompt else line
        row.setdefault("group", f"line {at}")
    return [_sample(row, predictions, line) for line, row in enumerate(rows, start=1)]


def _json_lines(path: Path, required: str) -> list[dict[str, Any]]:
    # splitlines() would also split inside texts, at U+2028.
    lines = _text_of(path).split("\n")
    rows = [_row(path, number, line, required) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError(f'{path}: is empty; expected lines such as {{"{required}": …}}')
    return rows


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: is not UTF-8 (byte 0x{content[error.start]:02x}). If it is Latin-1, "
            f"`iconv -f latin1 -t utf-8 {path.name}` converts it"
        ) from None


def _row(path: Path, number: int, line: str, required: str) -> dict[str, Any]:
    try:
        row = json_of(line, f"{path}, line {number}")
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{path}, line {number}: is nested too deep to be read") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: got {line.strip()[:80]}; expected an object")
    if required not in row:
        raise InputError(f"{path}, line {number}: lacks '{required}'; {there_are(row, 'columns')}")
    return row


def _sample(row: Mapping[str, Any], path: Path, line: int) -> Sample:
    text, prompt = row["prediction"], row.get("prompt", "")
    references, meta, group = row.get("references", []), row.get("meta", {}), row["group"]
    if is_conversation(prompt) and isinstance(meta, dict):  # as in training
        messages = conversation(prompt, f"{path}, sample {line}: prompt")
        prompt, meta = text_of(messages), {**meta, MESSAGES: messages}
    for column, value, kind in (("prediction", text, str), ("prompt", prompt, str), ("meta", meta, dict)):
        if not isinstance(value, kind):
            raise InputError(f"{path}, sample {line}: {column} is {value!r}; expected a {kind.__name__}")
    if not isinstance(references, list) or not all(isinstance(reference, str) for reference in references):
        raise InputError(f"{path}, sample {line}: references is {references!r}; expected a list of texts")
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise InputError(f"{path}, sample {line}: group is {group!r}; expected a text or a whole number")
    return Sample(text, prompt, tuple(references), meta, str(group))
