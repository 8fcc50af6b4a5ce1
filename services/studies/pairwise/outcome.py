"""Count won, tied and lost pairs, and test whether chance explains the difference.

Several texts of one prompt are not independent, so tests are over prompts. The majority of a prompt's pairs
decides its outcome.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.studies.pairwise.asking import Asked
from services.studies.pairwise.question import Order, Question, Verdict, combined
from services.studies.pairwise.texts import Pair

WORTH: Mapping[Verdict, int] = {"win": 1, "tie": 0, "lose": -1}


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on one pair from both orders; None for a missing or unreadable reply."""

    pair: Pair
    verdicts: Mapping[str, Verdict] | None
    by_order: Mapping[Order, Mapping[str, Verdict]]
    problem: str = ""  # "no reply" or "not understood"
    replies: Mapping[Order, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one criterion over all judged pairs, seen from A.

    `p` comes from a two-sided sign test over prompts, without ties. It is the probability of this difference
    between won and lost prompts if both were equally likely. `share_won` is the share of pairs, where a tie
    counts half. `interval` is for the share of won among won and lost prompts (Clopper and Pearson 1934).

    Example: 8 won, 10 tied and 2 lost prompts give p = 2 · (1 + 10 + 45) / 2¹⁰ = 0.109.
    """

    wins: int
    ties: int
    losses: int
    num_disagreements: int  # pairs won in one order and lost in the other
    prompts_won: int
    prompts_lost: int
    p: float
    interval: tuple[float, float] | None  # 95 %; None: no prompt was won or lost

    @property
    def num(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def share_won(self) -> float | None:
        return (self.wins + self.ties / 2) / self.num if self.num else None


@dataclass(frozen=True, slots=True)
class FirstShown:
    """The judge's preference for the text shown first, over all replies with a preference.

    `p` comes from a sign test over prompts with two or more replies each.
    """

    first: int
    second: int
    p: float


def judged(
    pairs: Sequence[Pair], requests: Sequence[Asked], replies: Mapping[str, str], question: Question
) -> list[Judged]:
    """Return each pair's verdicts from the replies to its two questions; two equal texts tie."""
    by_place: dict[int, dict[Order, str | None]] = {}
    for request in requests:
        by_place.setdefault(request.place, {})[request.order] = replies.get(request.key)
    return [_judge(pair, by_place.get(place), question) for place, pair in enumerate(pairs)]


def outcome(rows: Sequence[Judged], criterion: str) -> Outcome:
    """Count one criterion over the rows with verdicts."""
    from scipy.stats import binomtest

    decisions = [(row.pair, row.verdicts[criterion]) for row in rows if row.verdicts is not None]
    counts = Counter(verdict for _, verdict in decisions)
    won, lost = _decided((pair, WORTH[verdict]) for pair, verdict in decisions)
    test = binomtest(won, won + lost) if won + lost else None
    bounds = test.proportion_ci(0.95, "exact") if test else None
    both = ({verdicts[criterion] for verdicts in row.by_order.values()} for row in rows if row.verdicts)
    return Outcome(
        wins=counts["win"],
        ties=counts["tie"],
        losses=counts["lose"],
        num_disagreements=sum(verdict_set == {"win", "lose"} for verdict_set in both),
        prompts_won=won,
        prompts_lost=lost,
        p=float(test.pvalue) if test else 1.0,
        interval=(float(bounds.low), float(bounds.high)) if bounds else None,
    )


def first_shown(rows: Sequence[Judged], criterion: str) -> FirstShown:
    from scipy.stats import binomtest

    took_first = [
        (row.pair, (order == "AB") == (verdicts[criterion] == "win"))
        for row in rows
        for order, verdicts in row.by_order.items()
        if verdicts[criterion] != "tie"
    ]
    counts = Counter(first for _, first in took_first)
    more, fewer = _decided((pair, 1 if first else -1) for pair, first in took_first)
    p = float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0
    return FirstShown(counts[True], counts[False], p)


def _decided(worths: Iterable[tuple[Pair, int]]) -> tuple[int, int]:
    """Count the prompts with a sum above 0, and with a sum below 0."""
    sums: Counter[tuple[str, str]] = Counter()
    for pair, worth in worths:
        sums[pair.id, pair.prompt] += worth
    return sum(total > 0 for total in sums.values()), sum(total < 0 for total in sums.values())


def _judge(pair: Pair, answers: Mapping[Order, str | None] | None, question: Question) -> Judged:
    if answers is None:
        return Judged(pair, dict.fromkeys(question.criteria, "tie"), {})
    replies = {order: reply for order, reply in answers.items() if reply is not None}
    parsed = {order: question.verdicts(reply, order) for order, reply in replies.items()}
    by_order = {order: verdicts for order, verdicts in parsed.items() if verdicts is not None}
    if len(by_order) < len(answers):
        problem = "no reply" if len(replies) < len(answers) else "not understood"
        return Judged(pair, None, by_order, problem, replies)
    together = {
        criterion: combined({order: verdicts[criterion] for order, verdicts in by_order.items()})
        for criterion in question.criteria
    }
    return Judged(pair, together, by_order, replies=replies)


def as_row(row: Judged) -> dict[str, Any]:
    """Return the row of the JSON file."""
    return {
        "prompt_id": row.pair.id,
        "verdicts": row.verdicts,
        "by_order": row.by_order,
        "problem": row.problem or None,
        "same_text": row.pair.a == row.pair.b,
        "prompt": row.pair.prompt,
        "a": row.pair.a,
        "b": row.pair.b,
        "replies": row.replies,
    }
