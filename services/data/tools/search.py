"""Search passages of the text files in a folder, by the words of a question."""

import math
import re
from collections import Counter
from pathlib import Path

from contracts.errors import InputError

WORD = re.compile(r"\w+")
MOST_MIB = 64  # limit of all files together


class Search:
    """The tool `search`: passages ranked by BM25 (Robertson and Zaragoza 2009, with k1 = 1.2 and b = 0.75).

    Args:
        folder: folder whose files with these endings are read at the start, including subfolders.
        endings: endings of the files.
        num_passages: passages in an answer.

        Raises:
        InputError: the folder is missing, holds no file with these endings, or too much text.
    """

    def __init__(
        self, folder: str, endings: list[str] | tuple[str, ...] = (".md", ".txt"), num_passages: int = 3
    ):
        if isinstance(endings, str):
            raise InputError(f"environment.tools: search: endings={endings}: expected a list, [{endings}]")
        root = Path(folder).expanduser()
        files = sorted(path for path in root.rglob("*") if path.suffix in endings and path.is_file())
        if not files:
            raise InputError(
                f"environment.tools: search: {root} has no file that ends in {', '.join(endings)}"
            )
        size = sum(path.stat().st_size for path in files)
        if size > MOST_MIB * 2**20:
            raise InputError(
                f"environment.tools: search: {root} holds {size >> 20} MiB; expected {MOST_MIB} at most"
            )
        self._num_passages = num_passages
        self._passages = [
            (path.relative_to(root), passage.strip())
            for path in files
            for passage in re.split(r"\n\s*\n", path.read_text(errors="replace"))
            if passage.strip()
        ]
        self._counts = [Counter(_words(passage)) for _, passage in self._passages]
        self._lengths = [count.total() for count in self._counts]
        self._mean = sum(self._lengths) / max(1, len(self._lengths))
        self._holding = Counter(word for count in self._counts for word in count)

    def search(self, query: str) -> str:
        """Search the notes for passages.

        Args:
            query: words of what is sought
        """
        words = set(_words(query))
        ranked = sorted(
            ((self._score(words, place), -place) for place in range(len(self._passages))), reverse=True
        )
        passages = [self._passages[-place] for score, place in ranked[: self._num_passages] if score > 0]
        return "\n\n".join(f"[{path}] {passage}" for path, passage in passages) or "Nothing was found."

    def _score(self, words: set[str], place: int) -> float:
        count, total = self._counts[place], 0.0
        damped = 1.2 * (0.25 + 0.75 * self._lengths[place] / max(1.0, self._mean))
        for word in words & count.keys():
            holding = self._holding[word]
            rare = math.log(1 + (len(self._counts) - holding + 0.5) / (holding + 0.5))
            total += rare * count[word] * 2.2 / (count[word] + damped)
        return total


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]
