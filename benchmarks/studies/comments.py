"""Self-distillation from a grader's comments beside GRPO, with a chat model that can read them.

    python -m benchmarks.studies.comments MODEL [--seeds 0 1 …]

MODEL is the folder of an instruct model, such as the one that `whetstone demo instruct` makes. It learns to answer
in one sentence of ten words. The figure is the number of tokens written until two iterations in a row earn `TARGET`.
"""

import argparse
import shutil
import statistics
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.again import started
from benchmarks.outcome import OUT, publish, with_error
from contracts.scores import Grade, Sample
from reward_servers.graders.length import num_words
from reward_servers.graders.short_answer import ShortAnswer, is_one_sentence

ROOT = OUT / "comments"
TARGET = 0.3  # mean reward; the untrained model earns 0.08
LAST = 3  # iterations whose mean reward is compared
SHORTER, LONGER = "Answer in one short sentence of ten words.", "Answer in a longer sentence of ten words."
READS = [
    *("algorithm=self_distillation", "algorithm.reads=comment", "algorithm.teacher=live"),
    *("algorithm.template='{prompt}{comment}'", "algorithm.comment_template=' {comment}'"),
]
ARMS = {"grpo": ["algorithm=grpo"], "comments": READS, "both": [*READS, "algorithm.weight=0.5"]}
ALWAYS = [
    *("experiment=demo_instruct", "evaluate_every=never", "save_every=0", "tracking.enabled=false"),
    *("metrics=[]", "reward=benchmarks.studies.comments:Advising"),
    *("algorithm.learning_rate=5e-4", "algorithm.num_epochs=1", "algorithm.minibatch_size=16"),
    *("rollout.prompts_per_iteration=4", "rollout.group_size=4"),
]

Curve = dict[str, list[float]]


class Advising:
    """`short_answer` with advice for texts that are too long, too short, or not one sentence."""

    def score(self, samples: Sequence[Sample]) -> list[Grade]:
        scores = ShortAnswer().score(samples)
        return [
            Grade(score, comment=advice(sample.text)) for score, sample in zip(scores, samples, strict=True)
        ]


def advice(text: str) -> str:
    if num_words(text) > 12 or not is_one_sentence(text):
        return SHORTER
    return LONGER if num_words(text) < 8 else ""


def curves_of(arm: str, options: Sequence[str], seeds: Sequence[int]) -> list[Curve]:
    """Train with each seed; return rewards and numbers of tokens by iteration."""
    curves = []
    with started(options, ROOT / arm) as train:
        for seed in seeds:
            rows = train([*options, f"seed={seed}"], f"{arm}-{seed}").rollout_info()
            rewards = [row["reward/mean"] for row in rows]
            tokens = [row["rollouts/trained"] * row["response_length/mean"] for row in rows]
            curves.append({"rewards": rewards, "tokens": tokens})
            print(arm, seed, [round(reward, 2) for reward in rewards], flush=True)
    return curves


def tokens_to_target(rewards: Sequence[float], tokens: Sequence[float]) -> float | None:
    """Return the tokens written until two iterations in a row earned `TARGET` on average; None: never.

    >>> tokens_to_target([0.1, 0.2, 0.4, 0.4], [10, 10, 10, 10])
    30
    """
    pairs = enumerate(pairwise(rewards), start=2)
    ends = (end for end, pair in pairs if statistics.fmean(pair) >= TARGET)
    return next((sum(tokens[:end]) for end in ends), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(8)))
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    chosen = parser.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    always = [*ALWAYS, f"model.path={chosen.model}", f"iterations={chosen.iterations}"]
    curves = {arm: curves_of(arm, [*always, *ARMS[arm]], chosen.seeds) for arm in chosen.arms}
    base, rows = next(iter(curves.values())), {}
    for arm, values in curves.items():
        needed = [tokens_to_target(**curve) for curve in values]
        pairs = zip(needed, (tokens_to_target(**curve) for curve in base), strict=True)
        shares = [mine / theirs for mine, theirs in pairs if mine and theirs]
        last = [statistics.fmean(curve["rewards"][-LAST:]) for curve in values]
        rows[arm] = f"{needed}; {with_error(shares)} of the first arm's; last rewards {with_error(last)}"
    publish("comments", f"Tokens until the mean reward is {TARGET}", rows, curves)


if __name__ == "__main__":
    main()
