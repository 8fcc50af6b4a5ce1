"""Count a text's tokens, for tasks that skip or shorten long texts."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from contracts.errors import InputError

PIECE = re.compile(r"\w+|[^\w\s]")


@cache
def token_counter(tokenizer: str | None) -> Callable[[str], int]:
    """Return a counter of tokens. Without a tokenizer count words and punctuation marks, which are fewer.

    >>> token_counter(None)("It isn't far.")
    6

    Raises:
        InputError: there is no such tokenizer.
    """
    if tokenizer is None:
        return lambda text: len(PIECE.findall(text))
    try:
        encoder = _load(tokenizer)
    except Exception as error:  # the hub's client and the tokenizers raise some twenty kinds
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"task.tokenizer={tokenizer} can't be loaded: {reason}. Give a folder, or leave it out: words "
            "and punctuation marks are counted then"
        ) from None
    return lambda text: len(encoder.encode(text, add_special_tokens=False).ids)


def _load(tokenizer: str) -> Any:
    file = Path(tokenizer) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(file))
        loaded.no_truncation()
        loaded.no_padding()
        return loaded
    from transformers import AutoTokenizer  # for names on the hub and vocabulary files; takes seconds

    return AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False).backend_tokenizer
