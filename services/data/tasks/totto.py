"""Write a sentence about the highlighted cells of a table (ToTTo, Parikh et al. 2020)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import HIDDEN, DataSetTask
from services.data.tasks.rows import check_columns, text_at
from services.data.tasks.table_text import check_table, full_table_text, subtable_text

TITLES = ("table_page_title", "table_section_title")
SECTION_TEXT = "table_section_text"


class Totto(DataSetTask):
    """Task whose prompt shows the table twice, as in RL4LMs: without the titles, then with them.

    The text of the table's section is not in the prompt, but PARENT's precision uses it. The test's sentences
    are not public. A placeholder replaces them, so scores on the test mean nothing.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "totto"
    columns: ClassVar[tuple[str, ...]] = ("table", "highlighted_cells", *TITLES)  # and sentence_annotations
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = (
        "meteor",
        "parent_totto",
        "rouge",
        "bleu_totto",
        "diversity",
    )

    path: str = "google-research-datasets/totto"
    representation: Literal["subtable", "fulltable"] = "subtable"  # the highlighted cells, or all of them

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        table, highlighted = fields["table"], fields["highlighted_cells"]
        check_table(table, highlighted, where)
        titles = {column.removeprefix("table_"): text_at(fields, column, where) for column in TITLES}
        linearize = subtable_text if self.representation == "subtable" else full_table_text
        text = linearize(table, highlighted) + linearize(table, highlighted, titles)
        meta = {column: fields[column] for column in self.columns}
        if fields.get(SECTION_TEXT) is not None:
            meta[SECTION_TEXT] = text_at(fields, SECTION_TEXT, where)
        overlap = str(fields.get("overlap_subset"))  # a text on the hub; "none" where it does not apply
        meta |= {"overlap_subset": overlap == "True"} if overlap in ("True", "False") else {}
        references = (HIDDEN,) if split == "test" else _final_sentences(fields, where)
        return [Prompt("", text, references, meta)]

    def columns_of(self, split: Split) -> Sequence[str]:
        return self.columns if split == "test" else (*self.columns, "sentence_annotations")


def _final_sentences(fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the final sentences, from a list of annotations or from a list for each of their parts."""
    check_columns(fields, ["sentence_annotations"], where)
    annotations = fields["sentence_annotations"]
    texts = annotations.get("final_sentence") if isinstance(annotations, Mapping) else annotations
    if isinstance(texts, list) and not isinstance(annotations, Mapping):
        texts = [one.get("final_sentence") if isinstance(one, Mapping) else None for one in texts]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where}: expected annotations with a final_sentence in column 'sentence_annotations', "
            f"got {annotations!r:.200}"
        )
    return tuple(texts)
