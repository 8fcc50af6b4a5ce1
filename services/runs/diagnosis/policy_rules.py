"""Rules about the policy's course: KL, entropy, clipping, learning rate."""

from typing import ClassVar

from services.runs.diagnosis.history import History
from services.runs.diagnosis.reward_rules import drowns_penalty
from services.runs.diagnosis.rule import Evidence, Rule, scaled
from services.terminal.readable import number

KL, ENTROPY, CLIPPED, DRIFT = "kl/mean", "entropy", "clip_fraction", "approx_kl"
REWARD, ERROR = "reward/mean", "reward/standard_error"
RATE = "algorithm.learning_rate"


class KLRunsAway(Rule):
    """KL to the reference that exceeds every useful range, and grows without a gain in reward."""

    name = "kl_runs_away"
    title = "KL runs away"
    reads = (KL, REWARD)
    shows = (KL, "kl/coefficient", REWARD)
    threshold = 2.0
    reason = (
        "at 2 nats a token the policy finds its tokens e² = 7.4 times as likely as the reference does, so "
        "little of the reference is left. A small model that learns from nothing goes as far, but its reward "
        "rises, too"
    )
    growth: ClassVar[float] = 1.2  # least growth between windows, because a settled policy's KL does not grow
    gain: ClassVar[float] = 2.0  # standard errors of the reward, from one window to the next

    def find(self, seen: History) -> Evidence | None:
        late, before = seen.late(KL), seen.before(KL)
        if drowns_penalty(seen):  # the reward's size is the cause
            return None
        if late is None or before is None or late <= max(self.threshold, self.growth * before):
            return None
        reward, former = seen.late(REWARD), seen.before(REWARD)
        if reward is None or former is None or reward > former + self.gain * (seen.late(ERROR) or 0.0):
            return None
        sentence = (
            f"kl/mean grew from {number(before)} to {number(late)} nats a token within ten iterations, while "
            f"the reward went from {number(former)} to {number(reward)}"
        )
        return Evidence(sentence, {KL: late, f"{KL}/before": before, REWARD: reward})

    def remedy(self, seen: History) -> tuple[str, ...]:
        remedies = (
            scaled(seen, "algorithm.kl.coefficient", 5, "algorithm.kl.coefficient=0.05"),
            scaled(seen, RATE, 0.3, f"a third of {RATE}"),
        )
        adapts = ("algorithm.kl.target=0.1 adapts the coefficient",)
        return remedies if seen.settings.get("algorithm.kl.coefficient") == 0 else remedies + adapts


class EntropyCollapses(Rule):
    """Entropy so low that the policy hardly samples different texts."""

    name = "entropy_collapses"
    title = "Entropy collapses"
    reads = (ENTROPY,)
    shows = (ENTROPY, REWARD)
    threshold = 0.05
    reason = (
        "at 0.05 nats a token, 20 tokens have 1 nat together: most samples of a prompt begin alike, "
        "and hardly anything new is tried"
    )
    # Entropy must fall to this share of its first value, because some policies start with low entropy.
    fall: ClassVar[float] = 0.2

    def find(self, seen: History) -> Evidence | None:
        early, late = seen.first(ENTROPY), seen.late(ENTROPY)
        if early is None or late is None or late > self.threshold or late > self.fall * early:
            return None
        sentence = f"entropy fell from {number(early)} to {number(late)} nats a token"
        return Evidence(sentence, {ENTROPY: late, f"{ENTROPY}/early": early})

    def remedy(self, seen: History) -> tuple[str, ...]:
        bonus = "algorithm.entropy_coef"
        has_bonus = bonus in seen.settings
        return (
            f"{bonus}=0.01" if has_bonus else "algorithm.clip_range_high=0.28",
            scaled(seen, RATE, 0.3, f"a third of {RATE}"),
            scaled(seen, "algorithm.kl.coefficient", 5, "algorithm.kl.coefficient=0.05"),
        )


class ClipSaturated(Rule):
    """Updates in which most tokens, or responses, are clipped and get no gradient."""

    name = "clip_saturated"
    title = "Clip fraction saturated"
    reads = (CLIPPED,)
    shows = (CLIPPED, DRIFT)
    threshold = 0.8
    reason = (
        "with four fifths outside the clip range, only a fifth of the batch still moves later steps of an "
        "update. Ratios of whole responses leave it sooner than ratios of tokens, and learn with half outside"
    )

    def find(self, seen: History) -> Evidence | None:
        late = seen.late(CLIPPED)
        if late is None or late <= self.threshold:
            return None
        return Evidence(f"{late:.0%} of the ratios are outside the clip range", {CLIPPED: late})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            scaled(seen, RATE, 0.3, f"a third of {RATE}"),
            scaled(seen, "algorithm.num_epochs", 0.5, "fewer algorithm.num_epochs"),
            scaled(seen, "algorithm.clip_range", 2, "a larger algorithm.clip_range"),
        )


class LearningRateHigh(Rule):
    """Steps so large that an update leaves the policy that sampled, or ruins it."""

    name = "learning_rate_high"
    title = "Learning rate too high"
    reads = (REWARD,)
    shows = (DRIFT, REWARD, "gradient_norm/policy")
    threshold = 0.5
    reason = (
        "ratios and clipping are valid near the policy that sampled; healthy updates move under 0.1 nats a "
        "token, and at five times that the batch no longer describes the policy"
    )
    ruin: ClassVar[float] = 4.0  # standard errors below the start, more than noise explains

    def find(self, seen: History) -> Evidence | None:
        if drowns_penalty(seen):  # the reward's size is the cause
            return None
        drift = seen.late(DRIFT)
        if drift is not None and drift > self.threshold:
            return Evidence(f"an update moves the policy by {number(drift)} nats a token", {DRIFT: drift})
        start, late = seen.first(REWARD), seen.late(REWARD)
        error, moved = seen.first(ERROR), seen.late(KL)
        if start is None or late is None or not error or moved is None:
            return None
        if late < start - self.ruin * error and moved > self.threshold:
            sentence = (
                f"the reward fell from {number(start)} to {number(late)}, {number((start - late) / error)} "
                f"standard errors, while kl/mean rose to {number(moved)}"
            )
            return Evidence(sentence, {REWARD: late, f"{REWARD}/early": start, KL: moved})
        return None

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            scaled(seen, RATE, 0.1, f"a tenth of {RATE}"),
            "learner.warmup_iterations=10",
            "algorithm.max_grad_norm=0.5",
        )


class LearningRateLow(Rule):
    """A policy that stays at the reference, and a reward that does not move."""

    name = "learning_rate_low"
    title = "Learning rate too low"
    reads = (KL, REWARD, ERROR)
    shows = (KL, REWARD, DRIFT)
    threshold = 1e-4
    reason = (
        "twenty updates that move the policy by less than 0.0001 nats a token change fewer than one token in "
        "a hundred, which no reward can measure"
    )
    patience: ClassVar[int] = 20  # iterations within which a useful rate changes something

    def find(self, seen: History) -> Evidence | None:
        late, early, error = seen.late(REWARD), seen.early(REWARD), seen.late(ERROR)
        moved = seen.late(KL)
        if seen.iteration < self.patience or None in (late, early, error, moved):
            return None
        assert late is not None and early is not None and error is not None and moved is not None
        if abs(moved) >= self.threshold or abs(late - early) > 2 * error or not error:
            return None
        sentence = (
            f"after {seen.iteration} iterations kl/mean is {moved:.1g} nats a token, and the reward went "
            f"from {number(early)} to {number(late)} (standard error {number(error)})"
        )
        return Evidence(sentence, {KL: moved, REWARD: late, f"{REWARD}/early": early})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            scaled(seen, RATE, 10, f"ten times {RATE}"),
            scaled(seen, "algorithm.kl.coefficient", 0.2, "a smaller algorithm.kl.coefficient"),
        )
