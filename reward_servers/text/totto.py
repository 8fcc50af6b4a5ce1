"""ToTTo's evaluation: tables as PARENT's cells, texts as words, and the subsets.

Parikh et al., "ToTTo: A Controlled Table-To-Text Generation Dataset" (EMNLP 2020), and the evaluation script
published with it. For precision the whole table, its titles and its section's text count; for recall the
highlighted cells and the titles. Each sample has three references, filled up with "<null>".
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.text.detokenizer import detokenized
from reward_servers.text.parent import Parent, parent
from reward_servers.text.references import references_of
from reward_servers.text.scripts import spaced

NULL = "<null>"
NUM_REFERENCES = 3
Cells = list[list[str]]


def totto_parent(sample: Sample, null_references: bool) -> Parent:
    """Return PARENT of one sample.

    Raises:
        InputError: the sample has no reference or no valid table.
    """
    table, highlighted = cells_of(sample.meta)
    references = [words(reference) for reference in padded_references(sample, null_references)]
    return parent(words(text_of(sample)), references, table, highlighted)


def text_of(sample: Sample) -> str:
    """Return the text, or "<null>" if it is blank."""
    return sample.text.strip() or NULL


def padded_references(sample: Sample, null_references: bool) -> list[str]:
    """Return the references, with `null_references` filled up to three by "<null>".

    A "<null>" has no word of the table, so its recall is only the table's. A text unlike all references can
    gain by this; the published figures include that gain.
    """
    references = references_of(sample, "ToTTo's evaluation")
    fill = NUM_REFERENCES - len(references) if null_references else 0
    return [*references, *[NULL] * fill]


def cells_of(meta: Mapping[str, Any]) -> tuple[Cells, Cells]:
    """Return the words of the cells for precision, and of the cells for recall.

    Raises:
        InputError: the meta data have no table, or its cells are not as expected.

    Example: `{"table": [[{"value": "Ann", "is_header": False, …}]], "highlighted_cells": [[0, 0]],
    "table_page_title": "A list"}` gives `([["ann"], ["a", "list"]], [["ann"], ["a", "list"]])`.
    """
    table, places = meta.get("table"), meta.get("highlighted_cells")
    if not isinstance(table, Sequence) or not isinstance(places, Sequence):
        raise InputError(
            f"PARENT needs the meta data 'table' (rows of cells with a value) and 'highlighted_cells' "
            f"([[row, column], …]); there is: {', '.join(meta) or 'none'}. The task totto has them"
        )
    try:
        everything = [str(cell["value"]) for row in table for cell in row]
        highlighted = [str(table[row][column]["value"]) for row, column in places]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"the sample's table is not as expected: {type(error).__name__}: {error}; expected rows of cells "
            f'such as {{"value": "Ann"}}, and highlighted_cells within them'
        ) from None
    titles = [str(meta.get(key) or "") for key in ("table_page_title", "table_section_title")]
    text = str(meta.get("table_section_text") or "")
    return _cells([*everything, *titles, text]), _cells([*highlighted, *titles])


def words(text: str) -> list[str]:
    """Return lower-cased words, detokenized and split again by sacrebleu's tokenizer 13a.

    >>> words("The man 's U.S. debut, in 1990 .")
    ['the', "man's", 'u', '.', 's', '.', 'debut', ',', 'in', '1990', '.']
    """
    return _split(lowered(text))


def lowered(text: str) -> str:
    """Return the text as one detokenized line in lower case."""
    return spaced(detokenized(_one_line(text).lower())).strip()


def subsets(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Return the sample indices of each non-empty subset; headers of `overlap` also occur in training."""
    by_name = {"overall": list(range(len(samples)))}
    for name, value in (("overlap", True), ("non_overlap", False)):
        by_name[name] = [
            place for place, sample in enumerate(samples) if sample.meta.get("overlap_subset") is value
        ]
    return {name: places for name, places in by_name.items() if places}


def _cells(values: Sequence[str]) -> Cells:
    """Return the words of each value with words.

    The official script writes a table as one line, "cell|||value" between tabs, and detokenizes that line. So
    a quote opened in one cell can close in another. Inside a value "|" becomes "-".
    """
    kept = [_one_line(value.replace("|", "-")).strip() for value in values if value.strip()]
    line = detokenized("\t".join(f"cell|||{value}" for value in kept).lower())
    split = [_split(entry.partition("|||")[2].strip()) for entry in line.split("\t")]
    return [cell for cell in split if cell]


def _one_line(text: str) -> str:
    return " ".join(text.replace("\t", " ").splitlines())


def _split(text: str) -> list[str]:
    return str(_tokenizer_13a()(spaced(text))).split()


@cache
def _tokenizer_13a() -> Any:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()
