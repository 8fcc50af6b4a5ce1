"""Learning curve of an unmodified agent; only the reward of `calculator_agent.py` teaches the model.

A tiny model with random weights, the transformers engine, the gateway and the learner are in this process;
each episode is a process of the agent. `python -m benchmarks.studies.agents --seeds 0` runs one seed.
"""

import argparse
import json
import random
import statistics
import sys
from itertools import chain, count
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.outcome import OUT
from contracts.components import create
from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm
from rollout_workers.environments.program import Program
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from services.models.new_tokenizer import word_tokenizer

EPISODES, ITERATIONS, COMPARED = 16, 24, 4  # compared iterations at the start and the end
SAMPLING = Sampling(max_tokens=1)
ALGORITHM = {"learning_rate": 2e-3, "num_epochs": 4, "minibatch_size": EPISODES, "kl": {"coefficient": 0.0}}
WORDS = ("plus", "minus", "times", "add", "subtract", "multiply", *map(str, range(10)))
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
AGENT = Path(__file__).with_name("calculator_agent.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--agent", default=str(AGENT), help="the agent's file")
    arguments = parser.parse_args()
    program = Program(
        command=f"{sys.executable} {arguments.agent}",
        num_parallel=8,
        max_turns=2,
        start_timeout_s=300,  # the client's import takes seconds, and longer on a busy machine
        step_timeout_s=300,
    )
    model = str(untrained(OUT / "agents"))
    settings = RolloutSettings(max_tokens=1, max_concurrent=EPISODES, dtype="float32")
    worker = RolloutWorker(model, model, None, "transformers", settings, environment=program, chat=ChatForm())
    worker.ready()
    for seed in arguments.seeds:
        result = run(worker, model, seed)
        with (OUT / "agents.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        shown = " ".join(f"{reward:.2f}" for reward in result["curve"])
        print(f"seed {seed}: {shown}; ratio at most {result['max_ratio']:.7f}; {result['seconds']:.0f} s")
        print(
            f"  first {COMPARED}: {told(result['first'])}, last {COMPARED}: {told(result['last'])}",
            flush=True,
        )
    worker.close()


def run(worker: RolloutWorker, model: str, seed: int) -> dict[str, Any]:
    """Train once; return the mean rewards, and the compared episodes' rewards."""
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    algorithm: Algorithm = create("algorithm", "ppo", ALGORITHM, ALGORITHMS, Algorithm)
    learner = Learner(
        ModelSettings(path=model, dropout=False),
        algorithm,
        LearnerSettings(lr_schedule="linear"),
        seed=seed,
        iterations=ITERATIONS,
        sampling=SAMPLING,
    )
    draw, number, rewards, ratios = random.Random(seed), count(seed * 10**6), [], []
    started = perf_counter()
    for _ in range(ITERATIONS):
        worker.load_weights(*learner.publish("float32"))
        rollouts = play(worker, [lease(next(number), question(draw)) for _ in range(EPISODES)])
        rewards.append([rollout.total_reward for rollout in rollouts])
        ratios.append(learner.update(rollouts)["mismatch/max_ratio"])
    return {
        "seed": seed,
        "curve": [statistics.fmean(totals) for totals in rewards],
        "first": list(chain.from_iterable(rewards[:COMPARED])),
        "last": list(chain.from_iterable(rewards[-COMPARED:])),
        "max_ratio": max(ratios),
        "seconds": perf_counter() - started,
    }


def play(worker: RolloutWorker, leases: list[Lease]) -> list[Rollout]:
    worker.submit(leases)
    rollouts: list[Rollout] = []
    while len(rollouts) < len(leases):
        rollouts += worker.poll(1.0).rollouts
    for rollout in rollouts:
        if rollout.error is not None:
            raise rollout.error
    return sorted(rollouts, key=lambda rollout: rollout.lease_id)


def question(draw: random.Random) -> str:
    """Return two steps on small numbers whose results no two tools share: "3 plus 4 minus 3"."""
    operations = draw.choices(("plus", "minus", "times"), k=2)
    return f"{draw.randint(5, 9)} {operations[0]} {draw.randint(3, 4)} {operations[1]} {draw.randint(3, 9)}"


def lease(number: int, text: str) -> Lease:
    return Lease(number, Prompt(f"calculator/{number}", text), (1,), number, number, SAMPLING)


def told(rewards: list[float]) -> str:
    error = statistics.stdev(rewards) / len(rewards) ** 0.5
    return f"{statistics.fmean(rewards):.3f} ± {error:.3f}"


def untrained(folder: Path) -> Path:
    """Make a model with random weights that reads these words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    special = ["<unk>", "<end>", "<user>", "<assistant>"]
    tokenizer = word_tokenizer(
        [*special, *WORDS], "<unk>", unk_token="<unk>", eos_token="<end>", extra_special_tokens=special[2:]
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=1,
        bos_token_id=None,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
