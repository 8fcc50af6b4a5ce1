"""Standard errors of means over texts, if several texts may come from one prompt.

Texts of one prompt resemble each other, so they carry less information than texts of different prompts.
Prompts are the independent samples, so a standard error is over prompts, whatever their numbers of texts.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.runs.part_names import split_name

ERROR = "/standard_error"  # end of the names of standard errors
CLEAR = 2.0  # standard errors that a change has to exceed; smaller changes are often chance


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a mean, with its standard error, None if the error is unknown.

    Example: `Change(0.1, 0.02).direction == 1`, and `Change(0.00035, 0.029).direction == 0`.
    """

    difference: float
    standard_error: float | None

    @property
    def direction(self) -> Literal[-1, 0, 1]:
        """Return 1 or -1 for a change of more than CLEAR standard errors, else 0."""
        error = self.standard_error
        if error is None or not abs(self.difference) > CLEAR * error:
            return 0
        return 1 if self.difference > 0 else -1


def error_key(metric: str) -> str:
    """Return the name under which an evaluation has a metric's standard error.

    >>> error_key("reward/mean"), error_key("parts/easy/reward/mean"), error_key("pass@4")
    ('reward/standard_error', 'parts/easy/reward/standard_error', 'pass@4/standard_error')
    """
    _, plain = split_name(metric) or ("", metric)
    return (metric.removesuffix("/mean") if plain == "reward/mean" else metric) + ERROR


def less_is_better(name: str) -> bool:
    """Tell whether smaller values of this metric are known to be better.

    >>> less_is_better("loss"), less_is_better("fluency_metrics/perplexity"), less_is_better("reward/mean")
    (True, True, False)
    """
    return name.rpartition("/")[2] in ("loss", "perplexity")


def is_error(name: str) -> bool:
    """Tell whether a metric's name is the name of another metric's standard error."""
    return name.endswith(ERROR)


def standard_error(values: Sequence[float], prompts: Sequence[Hashable]) -> float | None:
    """Compute the cluster-robust standard error of the mean of `values`; None for fewer than two prompts.

    With x̄ the mean of all N values, and G prompts:

        SE² = G / (G - 1) · Σ_g (Σ_{i in g} (x_i - x̄))² / N²

    This is the sandwich estimator (Liang and Zeger 1986, Biometrika 73, 13-22) of a regression on a
    constant, with the correction G / (G - 1) for few clusters (Cameron and Miller 2015, Journal of Human
    Resources 50, 317-372, section II). Miller (2024, arXiv 2411.00640) recommends it for evaluations of
    language models. If all prompts have equally many texts, it is the standard deviation of the prompts'
    means over √G; with one text per prompt it is s / √N.

    Args:
        prompts: prompt of each value.

    >>> standard_error([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "b"])  # means 2 and 6: √8 / √2
    2.0
    """
    return _over_prompts(_shares(values, prompts))


def standard_error_of_change(
    before: Sequence[float],
    prompts_before: Sequence[Hashable],
    after: Sequence[float],
    prompts_after: Sequence[Hashable],
) -> float | None:
    """Compute mean(after) - mean(before)'s cluster-robust standard error; None for fewer than two prompts.

    With u_g the difference of the two sides' Σ_{i in g} (x_i - x̄) / N:

        SE² = G / (G - 1) · Σ_g u_g²

    A prompt's effect on both sides cancels, because prompts on both sides are compared in pairs. With equally
    many texts everywhere, it is the standard deviation of the prompts' differences over √G. A prompt on only
    one side counts on that side. The sources are those of `standard_error`.

    >>> standard_error_of_change([1.0, 5.0], ["a", "b"], [2.0, 8.0], ["a", "b"])  # differences 1 and 3
    1.0
    """
    lost, gained = _shares(before, prompts_before), _shares(after, prompts_after)
    both = dict.fromkeys([*lost, *gained])
    return _over_prompts({prompt: gained.get(prompt, 0.0) - lost.get(prompt, 0.0) for prompt in both})


def unpaired(first: float | None, second: float | None) -> float | None:
    """Compute the standard error of a difference between two independent means, from their standard errors.

    >>> unpaired(3.0, 4.0)
    5.0
    """
    return None if first is None or second is None else math.hypot(first, second)


def _shares(values: Sequence[float], prompts: Sequence[Hashable]) -> dict[Hashable, float]:
    """Return each prompt's share in the mean's deviation: Σ (x_i - x̄) / N over the prompt's values."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    by_prompt: dict[Hashable, list[float]] = {}
    for value, prompt in zip(values, prompts, strict=True):
        by_prompt.setdefault(prompt, []).append(value - mean)
    return {prompt: math.fsum(deviations) / len(values) for prompt, deviations in by_prompt.items()}


def _over_prompts(shares: Mapping[Hashable, float]) -> float | None:
    count = len(shares)
    if count < 2:
        return None
    return math.sqrt(count / (count - 1) * math.fsum(share * share for share in shares.values()))
