"""PARENT F1 of the text against its references and its table (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text.totto import totto_parent


class Parent(Settings):
    """ToTTo's variant: precision against the whole table, recall of the highlighted cells and the titles."""

    needs_references: ClassVar[bool] = True
    needs_meta: ClassVar[tuple[str, ...]] = ("table", "highlighted_cells")
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    # The official evaluation fills references up to three with "<null>", which rewards copying the table.
    null_references: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [totto_parent(sample, self.null_references).f1 for sample in samples]
