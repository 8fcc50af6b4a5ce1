"""Tokens that begin and end a response, the same for sampling and scoring."""

from collections.abc import Sequence

from contracts.errors import InputError


def end_tokens(configured: int | Sequence[int] | None, of_tokenizer: int | None) -> tuple[int, ...]:
    """Return the model's end tokens (its generation config may name several) and the tokenizer's, sorted.

    >>> end_tokens([2, 7], 2)
    (2, 7)
    >>> end_tokens(None, 0)
    (0,)
    """
    listed = configured if isinstance(configured, Sequence) else (configured,)
    return tuple(sorted({token for token in (*listed, of_tokenizer) if token is not None}))


def decoder_start(*configured: int | None) -> int:
    """Return the first configured token; an encoder-decoder model reads it before its first own token.

    >>> decoder_start(None, 0)
    0

    Args:
        configured: `decoder_start_token_id` of the model's configuration, and of its generation settings.

    Raises:
        InputError: the model's files name no such token.
    """
    for token in configured:
        if token is not None:
            return token
    raise InputError(
        "the model is an encoder-decoder, and its config.json has no decoder_start_token_id, which its "
        "decoder reads first; add it (T5's is its pad token, BART's its end token)"
    )
