"""Bytes of a text file in UTF-8, unpacked, whatever its byte order mark."""

import codecs
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from contracts.errors import InputError

PACKED = (".gz", ".bz2", ".xz", ".zst")  # endings after the name of a packed text file
# Editors on Windows begin files with these marks. UTF-32's mark begins with UTF-16's.
OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
LOOKED_AT = 1 << 16  # bytes to read for the file's line ends


def kind_of(path: Path) -> str:
    """Return the ending that names a file's format.

    >>> kind_of(Path("train.jsonl")), kind_of(Path("a.train.csv.gz"))
    ('.jsonl', '.csv')
    """
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of one row in its file. Example: the second line of a file is `Place(10, 30, number=2)`."""

    begin: int
    end: int
    number: int  # number of the line, or of the row in a list


class FileBytes:
    """Bytes of one file in UTF-8. They stay on the disk if the file is unpacked UTF-8.

    Example: a file of a three-byte mark and `{"a": 1}` has `begin == 3` and `read(3, 11) == b'{"a": 1}'`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._whole: bytes | None = None
        try:
            head = self._head()
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise InputError(f"task.data_files: {path} can't be read: {error}") from None
        self.begin = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0

    def read(self, begin: int, end: int | None) -> bytes:
        """Return the bytes from `begin` to `end`; None: to the end."""
        if self._whole is not None:
            return self._whole[begin:end]
        size = os.fstat(self._file.fileno()).st_size if end is None else end
        parts, at = [], begin
        while at < size and (part := os.pread(self._file.fileno(), min(size - at, 1 << 30), at)):
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends, without the mark before the first one."""
        with io.BytesIO(self._whole) if self._whole is not None else self.path.open("rb") as file:
            file.seek(self.begin)
            yield from file

    def _head(self) -> bytes:
        """Return the first bytes. Keep the content of a file that must be unpacked or converted."""
        with opened(self.path) as file:
            head: bytes = file.read(LOOKED_AT)
            encoding = next((name for mark, name in OTHER_ENCODINGS.items() if head.startswith(mark)), None)
            lone_returns = b"\r" in head and b"\n" not in head
            if self.path.suffix not in PACKED and encoding is None and not lone_returns:
                return head
            whole = head + file.read()
        if encoding is not None:
            whole = whole.decode(encoding).encode()
        self._whole = whole.replace(b"\r", b"\n") if b"\n" not in whole else whole
        return self._whole[:LOOKED_AT]

    @cached_property
    def _file(self) -> IO[bytes]:
        return self.path.open("rb")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_file"}


def text_of(line: bytes, where: str) -> str:
    """Decode bytes.

    Raises:
        InputError: the bytes are not UTF-8; the message begins with `where`.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where} is not UTF-8 text (byte 0x{line[error.start]:02x}). `iconv -f latin1 -t utf-8` "
            "converts a file in Latin-1"
        ) from None


def opened(path: Path) -> IO[bytes]:
    """Open a file, and unpack it if its name has a packed ending."""
    import bz2
    import gzip

    ways: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zst}
    file: IO[bytes] = ways.get(path.suffix, open)(path, "rb")
    return file


def _zst(path: Path, _mode: str) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="zstd")
