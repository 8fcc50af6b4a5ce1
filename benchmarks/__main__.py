"""Run benchmarks, each in a process of its own, so that none measures what another left behind."""

import os
import subprocess
import sys

from services.launch import MALLOC_TUNABLES

ALL = {
    "generation": "a worker's tokens a second, beside bare vLLM's",
    "seq2seq": "our engine's tokens a second on a T5, beside transformers' own",
    "update": "the learner's trained tokens a second, beside a bare PyTorch loop's",
    "weights": "a weight push, beside copying the same bytes",
    "overhead": "what an iteration spends outside of its five parts",
    "memory": "what learner and worker take for GPT-2's shape",
    "turns": "generated tokens a second with 16 games in progress, beside single turns",
    "masked": "NLPO's rollouts, beside PPO's",
    "families": "a PPO iteration of a T5-like model, beside a GPT of its size",
    "shared_trunk": "the last third of the layers trained, beside all of them",
    "adapters": "LoRA and QLoRA beside all of a model: the base's bytes, trained tokens a second",
    "offline_cost": "A-LoL beside supervised training on the same batches: tokens a second, memory",
    "learner_memory": "what updates of PPO, NLPO and TRPO take with 50,257 tokens",
    "score": "ROUGE and METEOR rewards a second, beside RL4LMs' way of calling them, and through Serve",
    "peer": "whole iterations, beside trl's PPO trainer",
}


def main(names: list[str]) -> int:
    unknown = set(names) - ALL.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are:", file=sys.stderr)
        for name, what in ALL.items():
            print(f"  {name:11} {what}", file=sys.stderr)
        return 2
    environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES}  # as every process of a run has them
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment).returncode
        for name in names or ALL
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
