"""PARENT F1 of the text against its references and its table (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.grader import mean_of
from reward_servers.text.totto import subsets, totto_parent


class Parent(Settings):
    """ToTTo's variant: precision against the whole table, recall of the highlighted cells and the titles."""

    needs_references: ClassVar[bool] = True
    needs_meta: ClassVar[tuple[str, ...]] = ("table", "highlighted_cells")
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    # The official evaluation fills references up to three with "<null>", which rewards copying the table.
    null_references: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [totto_parent(sample, self.null_references).f1 for sample in samples]


class ParentTotto(Parent):
    """PARENT as ToTTo's official evaluation computes it: overall with rows, and the mean of each subset.

    The meta data's `overlap_subset` names a sample's subset.
    """

    null_references: bool = True  # pad with "<null>", as the official figures do; False: real references only

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        scores = [totto_parent(sample, self.null_references) for sample in samples]
        values: dict[str, MetricValue] = {}
        for name, places in subsets(samples).items():
            prefix = f"table_to_text/parent_{name}"
            for key, field in (("/precision", "precision"), ("/recall", "recall"), ("_f_score", "f1")):
                value = mean_of([getattr(scores[place], field) for place in places])
                values[prefix + key] = value if name == "overall" else MetricValue(corpus=value.corpus)
        return values
