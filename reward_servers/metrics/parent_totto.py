"""PARENT as ToTTo's official evaluation computes it (0 to 1): overall, and on each marked subset."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.text.totto import subsets, totto_parent


class ParentTotto(Settings):
    """PARENT with rows overall, and with the mean alone for subsets by the meta data's `overlap_subset`."""

    needs_references: ClassVar[bool] = True
    needs_meta: ClassVar[tuple[str, ...]] = ("table", "highlighted_cells")
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    null_references: bool = True  # as for the official figures; False: compare with real references alone

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        found = [totto_parent(sample, self.null_references) for sample in samples]
        values: dict[str, MetricValue] = {}
        for name, places in subsets(samples).items():
            prefix = f"table_to_text/parent_{name}"
            for key, field in (("/precision", "precision"), ("/recall", "recall"), ("_f_score", "f1")):
                value = mean_of([getattr(found[place], field) for place in places])
                values[prefix + key] = value if name == "overall" else MetricValue(corpus=value.corpus)
        return values
