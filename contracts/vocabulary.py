"""Which tokens end a response: the same answer for whoever samples and whoever scores."""

from collections.abc import Sequence


def end_tokens(configured: int | Sequence[int] | None, of_tokenizer: int | None) -> tuple[int, ...]:
    """The model's own end tokens (its generation config may name several) and the tokenizer's, sorted.

    >>> end_tokens([2, 7], 2)
    (2, 7)
    >>> end_tokens(None, 0)
    (0,)
    """
    listed = configured if isinstance(configured, Sequence) else (configured,)
    return tuple(sorted({token for token in (*listed, of_tokenizer) if token is not None}))
