"""ROUGE F1 of the text against its references, with stemming (0 to 1)."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings

RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]
References = Literal["first", "best"]


class Rouge(Settings):
    """One kind of ROUGE; with several references the best one counts, or only the first.

    Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (ACL 2004).
    """

    needs_references: ClassVar[bool] = True

    rouge_type: RougeType = "rougeL"
    references: References = "best"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [rouge_f1(sample, (self.rouge_type,), self.references)[self.rouge_type] for sample in samples]


def rouge_f1(sample: Sample, rouge_types: tuple[RougeType, ...], references: References) -> dict[str, float]:
    """F1 by kind of ROUGE. The best reference is chosen for each kind on its own.

    Raises:
        InputError: the sample has no reference.
    """
    if not sample.references:
        raise InputError("rouge compares with references, and this sample has none")
    targets = sample.references[:1] if references == "first" else sample.references
    found = _scorer(rouge_types).score_multi(targets, sample.text)
    return {rouge_type: float(found[rouge_type].fmeasure) for rouge_type in rouge_types}


@cache
def _scorer(rouge_types: tuple[RougeType, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # brings NLTK along: 1 s

    return RougeScorer(list(rouge_types), use_stemmer=True)
