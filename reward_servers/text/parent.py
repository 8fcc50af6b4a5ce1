"""PARENT, precision and recall of a table's description against its references and the table.

Dhingra et al., "Handling Divergent Reference Texts when Evaluating Table-to-Text Generation" (ACL 2019).
For n-grams g of order 1 to 4, with w(g) the share of the words of g that occur in the table (equation 2):

    precision_n = Σ_text count · (p + (1 - p) · w(g)) / Σ_text count       p = min(1, count_ref / count)  (4)
    recall_n    = Σ_ref count · w(g) · min(1, count_text / count) / Σ_ref count · w(g)                     (6)
    recall      = recall_ref^(1-λ) · recall_table^λ                                                        (5)

The geometric mean joins the orders. recall_table is the mean over the cells of the share of a cell's words
that the text holds in order (equation 7). λ defaults to the share of the table that the reference omits, 1 -
its mean mention (section 3.4). Smoothing and corner cases follow the authors' published evaluation code, so
numbers are comparable.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from reward_servers.text.alignment import common_length
from reward_servers.text.ngrams import Ngram, ngram_counts

ORDERS = (1, 2, 3, 4)
SMOOTHING = 1e-5

Words = Sequence[str]
Cells = Sequence[Words]


@dataclass(frozen=True, slots=True)
class Parent:
    """PARENT's values, all in 0 to 1."""

    precision: float
    recall: float
    f1: float


def parent(
    text: Words,
    references: Sequence[Words],
    table: Cells,
    mentionable: Cells,
    lambda_weight: float | None = None,
) -> Parent:
    """Return the values against the reference with the best F1.

    Args:
        table: the words of each cell that count as correct for precision.
        mentionable: the cells to mention, for recall; ToTTo's are the highlighted ones.
        lambda_weight: λ, the table's share of recall; None: computed from each reference.
    """
    in_table = frozenset(word for cell in table for word in cell)
    cells = [cell for cell in mentionable if cell]
    candidates = [_against(text, reference, in_table, cells, lambda_weight) for reference in references]
    return max(candidates, key=lambda candidate: candidate.f1)


def _against(
    text: Words, reference: Words, in_table: Collection[str], cells: Cells, lambda_weight: float | None
) -> Parent:
    pairs = [_order(text, reference, order, in_table) for order in ORDERS]
    precision = _geometric_mean([precision for precision, _ in pairs], instead=0.0)
    from_reference = _geometric_mean([recall for _, recall in pairs], instead=SMOOTHING)
    recall = from_reference
    if cells:
        weight = 1.0 - mean_mention(cells, reference) if lambda_weight is None else lambda_weight
        recall = from_reference ** (1.0 - weight) * (mean_mention(cells, text) or SMOOTHING) ** weight
    return Parent(precision, recall, 2.0 * precision * recall / (precision + recall + 1e-8))


def mean_mention(cells: Cells, text: Words) -> float:
    """Return the mean over the cells of the share of a cell's words that the text has in the same order.

    >>> mean_mention([["michael", "dahlquist"], ["1965"]], ["michael", "dahlquist", "drummer"])
    0.5
    """
    return sum(common_length(cell, text) / len(cell) for cell in cells) / len(cells)


def _order(text: Words, reference: Words, order: int, in_table: Collection[str]) -> tuple[float, float]:
    """Return precision and recall of one order."""
    counts, other = ngram_counts(text, order), ngram_counts(reference, order)
    covered = 0.0
    for ngram, count in counts.items():
        in_reference = min(1.0, other[ngram] / count)
        covered += count * (in_reference + (1.0 - in_reference) * _entailment(ngram, in_table))
    precision = covered / counts.total() if counts else 0.0
    wanted = recalled = 0.0
    for ngram, count in other.items():
        weight = count * _entailment(ngram, in_table)
        wanted += weight
        recalled += weight * min(1.0, counts[ngram] / count)
    return precision, recalled / wanted if wanted else 1.0


def _entailment(ngram: Ngram, in_table: Collection[str]) -> float:
    return sum(word in in_table for word in ngram) / len(ngram)


def _geometric_mean(values: Sequence[float], instead: float) -> float:
    """Return the geometric mean with zeros of higher orders smoothed, or `instead` if the first is 0."""
    if values[0] == 0.0:
        return instead
    return math.exp(math.fsum(math.log(value or SMOOTHING) for value in values) / len(values))
