"""Rules about rewards: whether they teach, and whether held-out metrics agree."""

from collections.abc import Mapping
from typing import Any, ClassVar

from services.runs.diagnosis.history import History, numbers
from services.runs.diagnosis.rule import Evidence, Rule, scaled
from services.terminal.readable import number

REWARD, ERROR = "reward/mean", "reward/standard_error"
SCALE, KL = "algorithm.reward_scale", "kl/mean"
LOW, HIGH, SPREAD, CONSTANT = "reward/min", "reward/max", "reward/std", "groups/constant"
# Parts of names of metrics for which higher is better. For other metrics the direction is unknown.
HIGHER_IS_BETTER = (
    *("accuracy", "bert", "bleu", "bleurt", "chrf", "cider", "coverage", "exact_match", "increasing_numbers"),
    *("maj@", "mean@", "meteor", "parent", "pass@", "rouge", "spice", "summac", "won"),
)


class HeldOutFalls(Rule):
    """Training reward that rises while a held-out metric falls, because of exploitation or overfitting."""

    name = "held_out_falls"
    title = "Reward rises, held-out falls"
    reads = (REWARD,)
    shows = (REWARD,)
    threshold = None
    reason = (
        "a held-out measure that is lower at each of the last two evaluations, by a tenth of its best value "
        "and two of its standard errors, is not lower by chance"
    )
    share: ClassVar[float] = 0.1
    errors: ClassVar[float] = 2.0

    def find(self, seen: History) -> Evidence | None:
        early, late, error = seen.early(REWARD), seen.late(REWARD), seen.late(ERROR)
        if early is None or late is None or late <= early + self.errors * (error or 0.0):
            return None
        falls = [
            (best - last, key, best, last)
            for key in held_out(seen)
            if (fall := self._fall(seen, key)) is not None
            for best, last in [fall]
        ]
        if not falls:
            return None
        _, key, best, last = max(falls)
        sentence = (
            f"the training reward rose from {number(early)} to {number(late)}, while validation's {key} fell "
            f"from {number(best)} to {number(last)}"
        )
        return Evidence(sentence, {REWARD: late, f"val/{key}": last, f"val/{key}/best": best})

    def _fall(self, seen: History, key: str) -> tuple[float, float] | None:
        rows = [row["metrics"] for row in seen.evaluations if numbers([row["metrics"].get(key)])]
        values = [float(metrics[key]) for metrics in rows]
        if len(values) < 3:
            return None
        best = max(values[:-2])
        known = numbers([rows[-1].get(ERROR)]) if key == REWARD else []
        least = max(self.share * abs(best), self.errors * known[0] if known else 0.0)
        return (best, values[-1]) if max(values[-2:]) < best - least else None

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            "keep_best=val/reward/mean, or the metric that you mean, keeps the checkpoint before the fall",
            scaled(seen, "algorithm.kl.coefficient", 5, "algorithm.kl.coefficient=0.05"),
            "a reward that counts what the metric counts; read samples in report.html",
        )


class GroupsWithoutVariance(Rule):
    """Groups, or whole batches, of equal rewards, in which nothing is better than anything else."""

    name = "groups_without_variance"
    title = "Groups without variance"
    reads = (REWARD,)
    shows = (CONSTANT, SPREAD, REWARD)
    threshold = 0.8
    reason = "a group of equal rewards has no advantage and teaches nothing; above 80 % four fifths of the "
    reason += "texts are wasted"
    equal: ClassVar[float] = 1e-6  # share of the reward's size; a smaller difference is rounding

    def find(self, seen: History) -> Evidence | None:
        if at_ceiling(seen) is not None:
            return None
        share = seen.late(CONSTANT)
        if share is not None and share > self.threshold:
            return Evidence(f"all rewards are equal in {share:.0%} of the groups", {CONSTANT: share})
        spread, mean = seen.late(SPREAD), seen.late(REWARD)
        if spread is not None and mean is not None and spread <= self.equal * (1 + abs(mean)):
            return Evidence(f"all rewards are {number(mean)}", {SPREAD: spread, REWARD: mean})
        return None

    def remedy(self, seen: History) -> tuple[str, ...]:
        remedies = ["a reward with more steps than all or nothing, or prompts of another difficulty"]
        if seen.late(CONSTANT) is not None:  # rollouts are compared in groups
            remedies.append(scaled(seen, "rollout.group_size", 2, "rollout.group_size=16"))
            if seen.settings.get("algorithm.drop_constant_groups") is False:
                remedies.append("algorithm.drop_constant_groups=true leaves them out of the loss")
        return tuple(remedies)


class RewardSize(Rule):
    """Rewards much larger or smaller than the KL penalty and the critic's loss expect."""

    name = "reward_size"
    title = "Size of the reward"
    reads = (REWARD, SPREAD)
    shows = (SPREAD, REWARD, KL)
    threshold = None
    reason = (
        "if algorithm.reward_scale is a number, the KL's coefficient and the critic's loss fit rewards "
        "with a deviation of about 1. At three times that the penalty is too weak, at a thirtieth too strong"
    )

    def find(self, seen: History) -> Evidence | None:
        size = misfit(seen)
        if size is None:
            return None
        scale, spread = seen.settings[SCALE], seen.first(SPREAD) or 0.0
        start, late = number(seen.first(REWARD) or 0.0), number(seen.late(REWARD) or 0.0)
        evidence = (
            f"rewards have a standard deviation of {number(spread)}; with algorithm.reward_scale="
            f"{number(float(scale))} the learner sees {number(size)}, and about 1 fits. The reward went from "
            f"{start} to {late}"
        )
        return Evidence(evidence, {SPREAD: spread, REWARD: seen.late(REWARD) or 0.0})

    def remedy(self, seen: History) -> tuple[str, ...]:
        critic = " algorithm.normalize_values=true" if "algorithm.normalize_values" in seen.settings else ""
        return (
            f"{SCALE}=deviation{critic}",
            f"{SCALE}={1 / (seen.first(SPREAD) or 1.0):.3g}, the reciprocal of that deviation",
        )


class RewardsAtCeiling(Rule):
    """Rewards that are nearly all the highest possible: the task is learned, or was too easy."""

    name = "rewards_at_ceiling"
    title = "Rewards at their ceiling"
    reads = (REWARD, LOW, HIGH)
    shows = (REWARD, HIGH, CONSTANT)
    threshold = None
    reason = (
        "with the mean within 2 % of the span of all rewards below the best one, nothing is left to gain; "
        "with equal rewards in four fifths of the groups, hardly anything within 10 %"
    )

    def find(self, seen: History) -> Evidence | None:
        ceiling = at_ceiling(seen)
        if ceiling is None:
            return None
        mean, highest = ceiling
        sentence = f"the mean reward is {number(mean)}, and the highest ever {number(highest)}"
        return Evidence(sentence, {REWARD: mean, HIGH: highest})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return ("fewer iterations=, because the rest is wasted", "harder prompts, or a stricter reward")


LARGE, SMALL, FAR = 3.0, 0.03, 2.0  # deviations of 1, and nats a token


def misfit(seen: History) -> float | None:
    """Return the deviation of the rewards in the learner's units, if their size harms the run.

    None: the size is about 1, the learner measures it, or the reward rises nevertheless.
    """
    scale, spread = seen.settings.get(SCALE), seen.first(SPREAD)  # a ruined run has no later spread
    if not isinstance(scale, int | float) or not spread or not _minds_size(seen):
        return None
    size = float(scale) * spread
    start, late = seen.first(REWARD), seen.late(REWARD)
    if SMALL <= size <= LARGE or start is None or late is None:
        return None
    rises = late > start + 2 * (seen.late(ERROR) or 0.0)
    return None if rises and (seen.late(KL) or 0.0) <= FAR else size


def drowns_penalty(seen: History) -> bool:
    """Tell whether rewards are so large that the KL's penalty hardly counts."""
    return (misfit(seen) or 0.0) > LARGE


def _minds_size(seen: History) -> bool:
    """Tell whether the algorithm has a critic, or subtracts the KL's penalty from the reward."""
    settings = seen.settings
    penalises = settings.get("algorithm.kl.placement") == "reward" and settings.get(
        "algorithm.kl.coefficient"
    )
    return bool("algorithm.value_coef" in settings or penalises)


NEAR, NEAR_IN_EQUAL_GROUPS = 0.02, 0.1  # distances from the highest reward, as shares of all rewards' range
MOST_EQUAL = 0.8  # share of groups


def at_ceiling(seen: History) -> tuple[float, float] | None:
    """Return the late mean reward and the run's highest reward, if they nearly agree."""
    mean, lows, highs = seen.late(REWARD), seen.values(LOW), seen.values(HIGH)
    if mean is None or not lows or not highs:
        return None
    highest, span = max(highs), max(highs) - min(lows)
    near = NEAR_IN_EQUAL_GROUPS if (seen.late(CONSTANT) or 0.0) > MOST_EQUAL else NEAR
    return (mean, highest) if span > 0 and highest - mean <= near * span else None


def held_out(seen: History) -> list[str]:
    """Return the validation metrics for which higher is better."""
    last: Mapping[str, Any] = seen.evaluations[-1]["metrics"] if seen.evaluations else {}
    return [key for key in last if key == REWARD or any(part in key for part in HIGHER_IS_BETTER)]
