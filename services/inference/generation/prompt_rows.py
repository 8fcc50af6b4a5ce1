"""Read a user's file of prompts like training and evaluations.

FILE.jsonl ─▶ read_checked ─▶ prompt_at (a conversation's last answer, its tools) ─▶ rows to print, prompts
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.asked import prompt_at
from services.data.tasks.columns import columns_of
from services.data.tasks.rows import read_checked

PROMPT, MESSAGES, REFERENCES = "prompt", "messages", "references"  # columns


def rows_of_file(path: Path) -> tuple[list[dict[str, Any]], list[Prompt]]:
    """Return a file's rows, with the model's input under `prompt`, and their prompts.

    An assistant's last message is not part of the prompt. It becomes the row's `references`, unless a column
    holds references.

    Raises:
        InputError: the file can't be used, or a conversation has no message to answer.
    """
    pairs: list[tuple[dict[str, Any], Prompt]] = []
    try:
        rows = read_checked(path, [], check=lambda row, where: pairs.append(_read(row, where)))
    except InputError as error:
        raise InputError(f"--prompts: {str(error).removeprefix('task.data_files: ')}") from None
    if not rows:
        raise InputError(f'--prompts: {path}: expected lines {{"prompt": …}} in a .jsonl file')
    return [row for row, _ in pairs], [prompt for _, prompt in pairs]


def _read(row: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Prompt]:
    column = next((name for name in (PROMPT, MESSAGES) if name in row), None)
    columns = columns_of(list(row), column, None, where, "", examples=row)
    prompt = prompt_at(row, columns, where, guessed=True)
    prompted: dict[str, Any] = {PROMPT: list(prompt.messages) or prompt.text}
    if columns.references is None and prompt.references and REFERENCES not in row:
        prompted[REFERENCES] = list(prompt.references)
    return {PROMPT: None, **row, **prompted}, prompt
