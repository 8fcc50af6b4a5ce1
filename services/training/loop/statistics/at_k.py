"""Metrics over several texts per prompt: mean@k, pass@k and maj@k, with errors clustered by prompt.

    prompt A: values 1 0 0 1, answers 7 5 7 7  ─▶  mean@4 0.5, pass@1 0.5, pass@2 0.83, pass@4 1, maj@4 0.67

A text passes if its value reaches a threshold. maj@k is the share of passing texts with the winning answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from contracts.errors import InputError, did_you_mean
from services.config.evaluation_settings import EvaluationSettings
from services.runs.standard_errors import error_key, standard_error


def pass_at_k(num_texts: int, num_passed: int, k: int) -> float:
    """Estimate without bias the chance that at least one of k texts passes, if c of n ≥ k texts pass.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 2, 2)  # the last: 5 of 6 pairs
    (0.25, 1.0, 0.8333333333333334)

    Raises:
        ValueError: there are fewer than k texts.
    """
    if not 0 <= num_passed <= num_texts or not 1 <= k <= num_texts:
        raise ValueError(f"got {num_passed} of {num_texts} texts, and k={k}; expected 1 ≤ k ≤ n and c ≤ n")
    return 1.0 - math.comb(num_texts - num_passed, k) / math.comb(num_texts, k)


def majority(answers: Sequence[str | None], passed: Sequence[bool]) -> float:
    """Return the share of passing texts among those with the most frequent answer (self-consistency).

    Texts without an answer do not vote; without votes return 0. Tied answers win equally often. Source: Wang
    et al. 2022 (arXiv 2203.11171).

    >>> majority(["7", "5", "7", None], [True, False, True, False]), majority(["7", "5"], [True, False])
    (1.0, 0.5)
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return fmean(
        fmean(ok for answer, ok in zip(answers, passed, strict=True) if answer == winner)
        for winner in winners
    )


def sizes(k: int) -> list[int]:
    """Return the values of k for which pass@k is computed: the powers of two below k, and k.

    >>> sizes(4), sizes(10)
    ([1, 2, 4], [1, 2, 4, 8, 10])
    """
    return [*(2**power for power in range(k.bit_length()) if 2**power < k), k]


@dataclass(frozen=True, slots=True)
class AtK:
    """Rule for the numbers of k texts per prompt.

    Example: `AtK(k=4)` uses the reward, with which a text passes from 1 on. `AtK(4, "lexical/exact_match",
    1.0)` uses a metric.
    """

    k: int
    by: str = "reward"  # column of predictions with the values
    at: float | None = 1.0  # least value that passes; None: compute only mean@k

    @classmethod
    def of(cls, settings: EvaluationSettings) -> "AtK | None":
        """Return the rule of an evaluation; None if it draws one text per prompt."""
        k = settings.samples_per_prompt
        return cls(k, settings.pass_by, settings.pass_at) if k > 1 else None

    def __call__(
        self,
        rows: Sequence[dict[str, Any]],
        groups: Sequence[Hashable],
        prompts: Sequence[Hashable],
        answers: Sequence[str | None] | None,
    ) -> dict[str, float]:
        """Return the numbers with their standard errors, and add each prompt's numbers to its rows.

        A number over j texts leaves out prompts with fewer than j scored texts. A vote leaves out prompts
        whose rows have no key `answer`, because a mixture's part may have no grader that finds answers.

        Args:
            rows: predictions, to which `answers` are added.
            groups: group of each row; texts of one prompt share a group.
            prompts: prompt of each row, for the standard errors; two groups may have the same prompt.
            answers: answer of each text; None: use the answers in the rows, if any.

        Raises:
            InputError: no row has the column `by`.
        """
        if not rows:
            return {}
        if not any(self.by in row for row in rows):
            names = [name for name, value in rows[0].items() if isinstance(value, int | float)]
            raise InputError(
                f"evaluation.pass_by={self.by}: no such column in predictions{did_you_mean(self.by, names)}"
            )
        if answers is not None:
            for row, answer in zip(rows, answers, strict=True):
                row["answer"] = answer
        members: dict[Hashable, list[int]] = {}
        for place, group in enumerate(groups):
            if isinstance(rows[place].get(self.by), int | float):
                members.setdefault(group, []).append(place)
        metrics: dict[str, float] = {}
        for name, (full, number) in self._numbers(rows, list(members.values())).items():
            metrics |= _over_prompts(name, [number(places) for places in full], full, rows, prompts)
        return metrics

    def _numbers(
        self, rows: Sequence[Mapping[str, Any]], members: Sequence[list[int]]
    ) -> dict[str, tuple[list[list[int]], Callable[[list[int]], float]]]:
        """Return the prompts of each number, as lists of row indices, and its function of such a list."""
        values = [row.get(self.by) for row in rows]

        def mean(places: list[int]) -> float:
            return fmean(float(values[place]) for place in places)  # type: ignore[arg-type]

        def full(least: int) -> list[list[int]]:
            return [places for places in members if len(places) >= least]

        numbers: dict[str, tuple[list[list[int]], Callable[[list[int]], float]]] = {
            f"mean@{self.k}": (full(1), mean)
        }
        if self.at is None:
            return numbers
        limit = self.at
        passed = [isinstance(value, int | float) and value >= limit for value in values]

        def vote(places: list[int]) -> float:
            return majority([rows[place]["answer"] for place in places], [passed[place] for place in places])

        def at_least_one(j: int) -> Callable[[list[int]], float]:
            return lambda places: pass_at_k(len(places), sum(passed[place] for place in places), j)

        numbers |= {f"pass@{j}": (full(j), at_least_one(j)) for j in sizes(self.k)}
        voting = [places for places in full(self.k) if "answer" in rows[places[0]]]
        return numbers | {f"maj@{self.k}": (voting, vote)}


def _over_prompts(
    name: str,
    numbers: Sequence[float],
    members: Sequence[list[int]],
    rows: Sequence[dict[str, Any]],
    prompts: Sequence[Hashable],
) -> dict[str, float]:
    """Return the mean over prompts and its error; add each prompt's number to its rows."""
    if not numbers:
        return {}
    for number, places in zip(numbers, members, strict=True):
        for place in places:
            rows[place][name] = number
    error = standard_error(numbers, [prompts[places[0]] for places in members])
    return {name: fmean(numbers)} | ({} if error is None else {error_key(name): error})
