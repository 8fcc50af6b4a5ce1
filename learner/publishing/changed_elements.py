"""Find the elements of a parameter that have changed since its last publication, bit for bit.

A small step changes few numbers of a bfloat16 copy. Neighbouring numbers are 1/256 to 1/128 of their size
apart, and most steps are far smaller.
"""

from typing import Any

import numpy as np

from contracts.weights import ChangedElements

Array = np.ndarray[Any, Any]
Sent = ChangedElements | Array


def changes(old: Array, new: Array) -> Sent | None:
    """Return what turns `old` into `new`: the changed elements, or all of `new` if that is smaller.

    None: they are equal. Bits are compared, not numbers, so NaNs and the two zeros arrive exactly.

    >>> changes(np.array([1.0, 2.0, 3.0], np.float32), np.array([1.0, 2.0, 4.0], np.float32))
    ChangedElements(indices=array([2], dtype=uint32), values=array([4.], dtype=float32))
    """
    bits: Any = np.dtype(f"u{new.itemsize}")
    differs = old.reshape(-1).view(bits) != new.reshape(-1).view(bits)
    count = int(np.count_nonzero(differs))
    if not count:
        return None
    kind = index_type(new.size)
    if count * (kind.itemsize + new.itemsize) >= new.nbytes:
        return new
    indices = np.flatnonzero(differs)
    return ChangedElements(indices.astype(kind), new.reshape(-1)[indices])


def index_type(size: int) -> np.dtype[Any]:
    """
    >>> index_type(2**32), index_type(2**32 + 1)
    (dtype('uint32'), dtype('uint64'))
    """
    return np.dtype(np.uint32 if size <= 2**32 else np.uint64)


def num_bytes(sent: Sent) -> int:
    """
    >>> num_bytes(ChangedElements(np.zeros(3, np.uint32), np.zeros(3, np.uint16)))
    18
    """
    if isinstance(sent, ChangedElements):
        return int(sent.indices.nbytes + sent.values.nbytes)
    return sent.nbytes
