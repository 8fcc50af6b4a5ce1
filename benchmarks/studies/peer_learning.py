"""Learning beside `trl`: the same model, prompts, reward, learning rate, group size and tokens on both sides.

`python -m benchmarks.studies.peer_learning MODEL` trains, for each algorithm and seed, trl and then Whetstone, and
writes docs/results/peer_learning.md. Existing runs stay.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.outcome import OUT
from benchmarks.peer import PEERS, THEIR_ENVIRONMENT, TRL
from benchmarks.peers.lesson import LESSONS, Lesson, prompts
from benchmarks.studies.peer_learning_report import write_page

ROOT = OUT / "peer_learning"
REWARD = f"{PEERS / 'lesson.py'}:share_of_letter"
OURS = {
    "grpo": ["algorithm.kl={placement: loss, estimator: k3_exact, coefficient: 0.04}"],
    # trl's PPO: a value model of its own, values clipped, advantages whitened over the batch, no bootstrap.
    "ppo": [
        *("algorithm.kl.coefficient=0.05", "algorithm.gamma=1.0", "algorithm.gae_lambda=0.95"),
        *("model.value_trunk=separate", "algorithm.value_coef=0.1", "algorithm.value_clip_range=0.2"),
        *("algorithm.value_clip_pessimistic=true", "algorithm.advantage_whitening=batch"),
        *("algorithm.bootstrap_truncated=false", "algorithm.max_grad_norm=1.0"),
    ],
}


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean reward of each iteration's responses, and the seconds since the first began."""

    rewards: tuple[float, ...]
    seconds: tuple[float, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a small causal model, such as stories260k")
    parser.add_argument("--algorithms", nargs="+", default=list(LESSONS), choices=LESSONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    model = arguments.model.absolute()
    ROOT.mkdir(parents=True, exist_ok=True)
    texts = write_prompts(model)
    for seed in arguments.seeds:
        for algorithm in arguments.algorithms:
            trl(algorithm, model, texts, seed)
            whetstone(algorithm, model, texts, seed)
    write_page(ROOT, LESSONS)


def write_prompts(model: Path) -> Path:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = [json.dumps({"prompt": text}) for text in prompts(lambda text: len(tokenizer(text)["input_ids"]))]
    file = ROOT / "prompts.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def trl(algorithm: str, model: Path, texts: Path, seed: int) -> None:
    if (file := kept("trl", algorithm, seed)).exists():
        return
    setup = subprocess.run(
        [PEERS / "setup.sh", TRL[algorithm][0]], capture_output=True, text=True, check=True
    )
    script = [setup.stdout.split()[-1], PEERS / "trl_learning.py", algorithm, model, texts, str(seed)]
    process = subprocess.run(
        script, env=os.environ | THEIR_ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True
    )
    curve = json.loads(process.stdout.splitlines()[-1])
    file.write_text(json.dumps(asdict(Curve(tuple(curve["rewards"]), tuple(curve["seconds"])))))


def whetstone(algorithm: str, model: Path, texts: Path, seed: int) -> None:
    if (file := kept("whetstone", algorithm, seed)).exists():
        return
    name = f"{algorithm}-seed{seed}"
    command = [sys.executable, "-m", "services.cli", "train", *overrides(algorithm, LESSONS[algorithm])]
    command += [f"model.path={model}", f"task.data_files={texts}", f"seed={seed}"]
    command += [f"output_dir={ROOT}", f"run_name={name}", "resume=never"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (ROOT / name / "rollout_info.jsonl").read_text().splitlines()]
    seconds = accumulate(row["time/iteration_s"] for row in rows)
    file.write_text(json.dumps(asdict(Curve(tuple(row["reward/mean"] for row in rows), tuple(seconds)))))


def overrides(algorithm: str, lesson: Lesson) -> Sequence[str]:
    return [
        *("task=prompts", f"reward={REWARD}", "metrics=[]", f"iterations={lesson.iterations}"),
        *("evaluate_every=0", "save_every=0", "tracking.enabled=false", "rollout.kv_cache_gib=0.25"),
        *(f"rollout.max_tokens={lesson.new_tokens}", f"rollout.prompts_per_iteration={lesson.prompts}"),
        *(f"rollout.group_size={lesson.group_size}", f"rollout.max_concurrent={lesson.sequences}"),
        *(f"algorithm={algorithm}", f"algorithm.num_epochs={lesson.epochs}"),
        *(f"algorithm.minibatch_size={lesson.sequences}", f"algorithm.learning_rate={lesson.learning_rate}"),
        *OURS[algorithm],
    ]


def kept(side: str, algorithm: str, seed: int) -> Path:
    return ROOT / f"{side}-{algorithm}-{seed}.json"


if __name__ == "__main__":
    main()
