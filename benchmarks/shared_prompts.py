"""Updates and scores of groups with one reading of the prompt, beside one reading for each response."""

from dataclasses import replace
from pathlib import Path

from benchmarks.models import gpt2_124m, gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from benchmarks.update import rollout_of
from contracts.rollout import Rollout
from learner.algorithms.grpo import GRPO
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings

GROUP_SIZE, ROUNDS = 8, 5
# model, prompts, tokens of a prompt, tokens of a response
SHAPES = (
    ("tiny, 72 + 48 tokens", gpt2_tiny, 8, 72, 48),
    ("GPT-2's shape, 96 + 48 tokens", gpt2_124m, 1, 96, 48),
)


class Side:
    """One learner; each call is one update of one epoch, scores included, and returns its seconds."""

    def __init__(self, model: Path, rollouts: list[Rollout], *, shares: bool) -> None:
        algorithm = GRPO(num_epochs=1, learning_rate=1e-5)
        self._learner = Learner(
            ModelSettings(path=str(model)), algorithm, LearnerSettings(), seed=0, iterations=1000
        )
        self._learner.pair.policy.shares_prompts = shares
        if self._learner.reference is not None:
            self._learner.reference.shares_prompts = shares
        self._rollouts = rollouts

    def __call__(self) -> float:
        metrics = self._learner.update(self._rollouts)
        return metrics["time/score_s"] + metrics["time/update_s"]


def main() -> None:
    rows, details = {}, {}
    for name, model, num_prompts, prompt_tokens, new_tokens in SHAPES:
        rollouts = [
            replace(
                rollout_of(index, index // GROUP_SIZE, prompt_tokens, new_tokens), group=index // GROUP_SIZE
            )
            for index in range(num_prompts * GROUP_SIZE)
        ]
        sides = {
            "each": Side(model(), rollouts, shares=False),
            "once": Side(model(), rollouts, shares=True),
        }
        details[name] = times = in_turns(sides, ROUNDS, warm_up=1)
        rows[f"{name}: seconds, each response's own reading / one reading"] = ratio(
            times["each"], times["once"]
        )
    publish("shared_prompts", f"GRPO, groups of {GROUP_SIZE}", rows, details)


if __name__ == "__main__":
    main()
