"""Tell transformers that a pass packs no sequences, so that it does not look for them.

For each pass it compares positions to see whether a row holds several sequences, and waits for the answer: a
GPU must then finish all work before. A causal policy's rows hold one sequence each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

_PACKS_NOTHING: ContextVar[bool] = ContextVar("packs_nothing", default=False)


@contextmanager
def nothing_packed() -> Iterator[None]:
    """Let passes in this context leave out transformers' search for packed sequences."""
    from transformers import masking_utils

    looks: Any = getattr(masking_utils, "find_packed_sequence_indices", None)
    if looks is not None and not getattr(looks, "may_skip", False):

        def look_unless_told(position_ids: Tensor) -> Tensor | None:
            packed: Tensor | None = None if _PACKS_NOTHING.get() else looks(position_ids)
            return packed

        look_unless_told.may_skip = True  # type: ignore[attr-defined]
        setattr(masking_utils, "find_packed_sequence_indices", look_unless_told)  # noqa: B010
    before = _PACKS_NOTHING.set(True)
    try:
        yield
    finally:
        _PACKS_NOTHING.reset(before)
