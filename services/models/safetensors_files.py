"""Headers of safetensors files: shapes and the file's length, without loading the weights."""

import json
import math
from pathlib import Path


def count_numbers(file: Path) -> int:
    """Count the numbers in a file, and check its length.

    The first 8 bytes are the length of a JSON header with shapes and offsets.

    Raises:
        ValueError: the header can't be read, or the file's length contradicts it. The message continues a
            sentence that begins with the file's name.
        OSError: the file can't be read.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(min(length, size))
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
        count = sum(math.prod(entry["shape"]) for entry in tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not a safetensors file: {error}") from None
    if end != size:
        raise ValueError(f"is {'cut short' if size < end else 'too long'}: {size} bytes, expected {end}")
    return count
