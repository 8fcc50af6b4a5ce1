"""Rules about the machinery: critic, sampler, age of tokens."""

from typing import ClassVar

from services.runs.diagnosis.history import History
from services.runs.diagnosis.rule import Evidence, Rule, scaled
from services.terminal.readable import number

EXPLAINED, VALUE = "explained_variance", "loss/value"
MISMATCH, WORST = "mismatch/kl", "mismatch/max_ratio"
REWARD, ERROR = "reward/mean", "reward/standard_error"
AGE, OLDEST = "staleness/mean", "staleness/max"


class CriticExplainsNothing(Rule):
    """A critic that is worse than none, is dead, or explains nothing while rewards do not rise."""

    name = "critic_explains_nothing"
    title = "Critic explains nothing"
    reads = (EXPLAINED, REWARD)
    shows = (EXPLAINED, VALUE, REWARD)
    threshold = -0.2
    reason = (
        "a constant explains 0 of the returns' variance; at -0.2 the critic adds a fifth to the noise of the "
        "advantages. Near 0 a run may still learn, so the rule fires only if the reward does not rise, or if "
        "the critic is dead: it always explains 0, while a live critic varies by a tenth"
    )
    dead: ClassVar[float] = 0.02  # in all of the window: explained variance below this means a dead critic
    nothing: ClassVar[float] = 0.05
    patience: ClassVar[int] = 20  # iterations that a critic needs to warm up
    rise: ClassVar[float] = 2.0  # standard errors of the reward

    def find(self, seen: History) -> Evidence | None:
        late, early, reward = seen.late(EXPLAINED), seen.early(REWARD), seen.late(REWARD)
        if late is None or early is None or reward is None or seen.iteration < self.patience:
            return None
        is_stuck = reward < early + self.rise * (seen.late(ERROR) or 0.0)
        is_dead = max(map(abs, seen.window(EXPLAINED))) < self.dead
        if late > self.threshold and not is_dead and not (late < self.nothing and is_stuck):
            return None
        sentence = (
            f"after {seen.iteration} iterations explained_variance is {number(late)}, and the reward went "
            f"from {number(early)} to {number(reward)}"
        )
        return Evidence(sentence, {EXPLAINED: late, REWARD: reward, f"{REWARD}/early": early})

    def remedy(self, seen: History) -> tuple[str, ...]:
        late, rate = seen.late(EXPLAINED) or 0.0, _critics_rate(seen)
        factor = 0.1 if late <= self.threshold else 10
        known = f"{factor * rate:.3g}" if rate else "a tenth, or ten times as much"
        return (
            f"algorithm.critic_learning_rate={known}",
            "model.value_trunk=separate model.critic=mlp",
            "algorithm=grpo or rloo, which need no critic; or a reward that depends on the text",
        )


class SamplerMismatch(Rule):
    """An engine that samples from another distribution than the learner trains."""

    name = "sampler_mismatch"
    title = "Sampler and learner disagree"
    reads = (MISMATCH,)
    shows = (MISMATCH, WORST)
    threshold = 0.02
    reason = (
        "rounding makes under 1e-6 nats a token in float32 and about 0.001 in bfloat16; twenty times that is "
        "another distribution, and makes ratios wrong by as much"
    )

    def find(self, seen: History) -> Evidence | None:
        late, age = seen.late(MISMATCH), seen.late(AGE)
        if late is None or late <= self.threshold or (age or 0.0) > 0:  # old weights always disagree
            return None
        return Evidence(f"the engine and the learner differ by {number(late)} nats a token", {MISMATCH: late})

    def remedy(self, seen: History) -> tuple[str, ...]:
        behavior = seen.settings.get("learner.behavior")
        sampling = ("rollout.temperature=1 rollout.top_p=1 rollout.top_k=0", "rollout.dtype=float32")
        return sampling if behavior == "exact" else ("learner.behavior=exact", *sampling)


class StaleTokens(Rule):
    """Tokens from weights so old that they no longer represent the policy."""

    name = "stale_tokens"
    title = "Stale tokens"
    reads = (AGE, MISMATCH)
    shows = (AGE, OLDEST, MISMATCH)
    threshold = 0.5
    reason = (
        "with tokens half a version old or more, 0.1 nats a token between the policy that wrote and the one "
        "that learns mean weights of e^0.45 either way: truncated importance weights lose much of the batch"
    )
    apart: ClassVar[float] = 0.1  # nats a token, as for an update that is too large

    def find(self, seen: History) -> Evidence | None:
        age, apart = seen.late(AGE), seen.late(MISMATCH)
        if age is None or apart is None or age < self.threshold or apart <= self.apart:
            return None
        sentence = (
            f"tokens are {number(age)} versions old, and the policy has moved {number(apart)} nats a token "
            "since they were written"
        )
        return Evidence(sentence, {AGE: age, MISMATCH: apart})

    def remedy(self, seen: History) -> tuple[str, ...]:
        return (
            "rollout.max_staleness=1, or 0",
            scaled(seen, "algorithm.learning_rate", 0.3, "a third of algorithm.learning_rate"),
        )


def _critics_rate(seen: History) -> float | None:
    rate = seen.settings.get("algorithm.critic_learning_rate") or seen.settings.get("algorithm.learning_rate")
    return float(rate) if isinstance(rate, int | float) else None
