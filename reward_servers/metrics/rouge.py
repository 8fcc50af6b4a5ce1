"""Mean ROUGE-1, -2, -L and -Lsum F1 of the texts against their references, with stemming (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar, get_args

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.rouge import References, RougeType, Tokenizer, rouge_f1


class Rouge(Settings):
    """All four kinds of ROUGE; of several references the best one counts, or only the first."""

    needs_references: ClassVar[bool] = True

    references: References = "best"
    tokenizer: Tokenizer = "unicode"

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        rouge_types: tuple[RougeType, ...] = get_args(RougeType)
        found = [rouge_f1(sample, rouge_types, self.references, self.tokenizer) for sample in samples]
        return {
            f"lexical/rouge_{rouge_type}": mean_of([row[rouge_type] for row in found])
            for rouge_type in rouge_types
        }
