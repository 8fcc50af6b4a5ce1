"""Runs of the demo's small model, sound and with a fault built in, for `benchmarks/studies/diagnose.py`."""

from dataclasses import dataclass

REWARDS = "benchmarks.studies.diagnose_rewards"
STEADY = ("algorithm=grpo", "rollout.prompts_per_iteration=8", "algorithm.learning_rate=1e-3")
# The settings of `benchmarks/studies/learning.py`, by whose runs every algorithm learns.
KL, FAST = "algorithm.kl.coefficient=0.01", "algorithm.learning_rate=1e-3"
FOUR = "algorithm.num_epochs=4"


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of run: the demo's overrides, and rules. At least one of the rules must fire."""

    name: str
    overrides: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()  # none: the run is sound


SOUND = (
    Case("ppo"),
    Case("nlpo", ("algorithm=nlpo", FAST, FOUR, KL, "algorithm.minibatch_size=128", "algorithm.gamma=1.0")),
    Case("a2c", ("algorithm=a2c", FAST, KL, "algorithm.gamma=1.0", "algorithm.advantage_whitening=batch")),
    Case("grpo", (*STEADY, FOUR)),
    Case("rloo", ("algorithm=rloo", "rollout.prompts_per_iteration=8", FAST, KL, FOUR)),
    Case("reinforce_pp", ("algorithm=reinforce_pp", FAST, KL, FOUR)),
    Case(
        "rejection",
        ("algorithm=rejection", FAST, FOUR, "algorithm.minibatch_size=64", "algorithm.top_share=0.25"),
    ),
)

FAULTY = (
    Case(
        "no penalty, no reward",
        (
            f"reward={REWARDS}:Noise",
            *("algorithm.kl.coefficient=0", "algorithm.learning_rate=0.01", "algorithm.num_epochs=8"),
        ),
        ("kl_runs_away",),
    ),
    Case("length paid", ("reward=length", "rollout.max_tokens=48"), ("length_exploited",)),
    Case(
        "repeats paid, no penalty",
        (f"reward={REWARDS}:Repeats", "algorithm.learning_rate=3e-3", "algorithm.kl.coefficient=0"),
        ("entropy_collapses", "repetition_exploited"),
    ),
    Case("repeats paid", (f"reward={REWARDS}:Repeats",), ("repetition_exploited", "held_out_falls")),
    Case("constant reward", (*STEADY, f"reward={REWARDS}:Constant"), ("groups_without_variance",)),
    Case(
        "tight clip",
        ("algorithm.clip_range=0.01", "algorithm.num_epochs=20", "algorithm.learning_rate=3e-3"),
        ("clip_saturated",),
    ),
    Case(
        "critic overshoots",
        ("model.value_trunk=separate", "algorithm.critic_learning_rate=0.3"),
        ("critic_explains_nothing",),
    ),
    Case("reward is noise", (f"reward={REWARDS}:Noise",), ("critic_explains_nothing",)),
    Case(
        "temperature ignored", ("rollout.temperature=0.5", "learner.behavior=ignore"), ("sampler_mismatch",)
    ),
    Case("responses cut", ("rollout.max_tokens=8",), ("responses_cut",)),
    Case("prompts cut", ("task.num_start_numbers=3", "rollout.max_prompt_tokens=2"), ("prompts_cut",)),
    Case(
        "stale",
        ("rollout.max_staleness=6", "algorithm.learning_rate=3e-3"),
        ("stale_tokens",),
    ),
    Case("easy reward", (*STEADY, f"reward={REWARDS}:Easy", FOUR), ("rewards_at_ceiling",)),
    Case(
        "reward in hundreds",
        (
            *(f"reward={REWARDS}:Hundreds", "algorithm.reward_scale=1.0"),
            *("algorithm.normalize_values=false", "algorithm.kl.coefficient=0.1"),
        ),
        ("reward_size",),
    ),
    Case("learning rate 1", ("algorithm.learning_rate=1.0",), ("learning_rate_high",)),
    Case("learning rate 0.05", ("algorithm.learning_rate=0.05",), ("learning_rate_high",)),
    Case("learning rate 1e-9", ("algorithm.learning_rate=1e-9",), ("learning_rate_low",)),
)
