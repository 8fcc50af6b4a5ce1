"""Learning with `rollout.order=finished` beside the default order, over seeds, on increasing numbers.

    python -m benchmarks.studies.finished_learning MODEL [--seeds 0 1 …]

MODEL is the start model of `whetstone demo`. All texts are short, so chance decides which group finishes first.
"""

import argparse
import shutil
import statistics

from benchmarks.again import started
from benchmarks.outcome import OUT, publish, with_error

ROOT = OUT / "finished-learning"
LAST = 5  # iterations whose mean reward is compared
KINDS = {
    "leased, 0": ["rollout.order=leased", "rollout.max_staleness=0"],
    "leased, 4": ["rollout.order=leased", "rollout.max_staleness=4"],
    "finished, 4": ["rollout.order=finished", "rollout.max_staleness=4"],
}
ALWAYS = [
    *("experiment=demo", "algorithm=grpo", "algorithm.kl.coefficient=0.01", "algorithm.minibatch_size=64"),
    *("algorithm.learning_rate=1e-3", "algorithm.num_epochs=4"),
    *("rollout.engine=vllm", "rollout.kv_cache_gib=0.25", "rollout.num_threads=1", "learner.num_threads=1"),
    *("rollout.prompts_per_iteration=16", "rollout.group_size=4", "iterations=30"),
    *("evaluate_every=never", "save_every=0", "metrics=[]", "tracking.enabled=false"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    chosen = parser.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    always = [*ALWAYS, f"model.path={chosen.model}"]
    rewards: dict[str, list[float]] = {kind: [] for kind in KINDS}
    ages: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with started([*always, *KINDS["finished, 4"]], ROOT) as train:
        for seed in chosen.seeds:
            for kind, options in KINDS.items():
                name = f"{kind.replace(', ', '-')}-seed{seed}"
                rows = train([*always, *options, f"seed={seed}"], name).rollout_info()
                rewards[kind].append(statistics.fmean(row["reward/mean"] for row in rows[-LAST:]))
                ages[kind].append(statistics.fmean(row["staleness/mean"] for row in rows))
                print(name, round(rewards[kind][-1], 3), flush=True)
    shown = {
        kind: f"{with_error(values)}; tokens are {statistics.fmean(ages[kind]):.1f} versions old"
        for kind, values in rewards.items()
    }
    publish("finished-learning", f"Mean reward of the last {LAST} iterations", shown, rewards)


if __name__ == "__main__":
    main()
