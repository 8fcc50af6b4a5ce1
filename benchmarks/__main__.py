"""Run each benchmark in its own process, so that no leftovers affect the next."""

import os
import subprocess
import sys

from services.training.train.launch import MALLOC_TUNABLES

ALL = {
    "generation": "a worker's tokens per second, and bare vLLM's",
    "engines": "tokens per second of vLLM and of our transformers engine, by shape",
    "seq2seq": "our engine's tokens per second on a T5, and those of transformers",
    "update": "the learner's trained tokens per second, and those of a bare PyTorch loop",
    "shared_prompts": "score and update of groups that share a prompt's reading, and without",
    "weights": "a weight push, and a copy of the same bytes",
    "transports": "a weight push over gloo and by objects, and a copy of the same bytes",
    "overhead": "the time of an iteration outside of its five parts",
    "memory": "the memory of learner and worker for GPT-2's shape",
    "turns": "generated tokens per second with 16 games in progress, and with single turns",
    "gateway": "generated tokens per second behind the gateway, and of the bare engine",
    "masked": "NLPO's rollouts, and PPO's",
    "families": "a PPO iteration of a T5-like model, and of a GPT of its size",
    "shared_trunk": "training of the last third of the layers, and of all of them",
    "adapters": "LoRA, QLoRA and full training: the base's bytes, trained tokens per second",
    "offline_cost": "A-LoL and supervised training on the same batches: tokens per second, memory",
    "learner_memory": "the memory of updates of PPO, NLPO and TRPO with 50,257 tokens",
    "score": "ROUGE and METEOR rewards per second: ours, as RL4LMs calls them, and through Serve",
    "token_budgets": "memory and time of an update on a CPU, by the tokens of a micro-batch",
    "memory_model": "the plan's sum of a learner's memory, and the peaks of six small learners",
    "driver": "the driver's microseconds, bytes and memory a rollout, up to 256 workers",
    "peer": "whole iterations of PPO, GRPO and RLOO, and those of trl's trainers",
}


def main(names: list[str]) -> int:
    unknown = set(names) - ALL.keys()
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are:", file=sys.stderr)
        for name, what in ALL.items():
            print(f"  {name:14} {what}", file=sys.stderr)
        return 2
    environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES}  # as in every process of a run
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment).returncode
        for name in names or ALL
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
