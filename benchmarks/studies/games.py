"""Text games by a small language model: a warm start on walkthroughs, then PPO and rejection sampling.

`python -m benchmarks.studies.games` makes the games and the untrained model. It runs `whetstone train` for the warm
start, then for both algorithms with each seed. The runs' folders hold the figures. `--seeds` and `--only` run
a part.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.outcome import OUT
from rollout_workers.environments.textworld import TextWorld
from services.data.tasks.textworld import TextWorld as Games
from services.models.new_tokenizer import byte_tokenizer

ROOT = OUT / "games"
MODEL, RUNS, PAGE = ROOT / "untrained", ROOT / "runs", Path("benchmarks/out/textworld.md")
VOCABULARY, WINDOW = 600, 320
SHOWN = 240  # training games whose walkthroughs the warm start sees
# Rooms in a row with a coin in the last one: turning back loses time, and the hints are shuffled.
TASK = {
    "challenge": "coin_collector",
    "level": 4,
    "max_level": 8,
    "num_train": 720,
    "num_validation": 20,
    "num_test": 40,
}
ENVIRONMENT = {"memory": 1, "max_turns": 12, "hints": "shuffled"}
SHARED = [
    *[f"task.{name}={value}" for name, value in TASK.items()],
    *[f"environment.{name}={value}" for name, value in ENVIRONMENT.items()],
    "environment.hidden_verbs=[examine,look,inventory]",
    "environment.objective=hidden",  # it is always the coin
    "environment.isolated=false",  # games this quick need no separate processes
    "rollout.num_threads=1",  # a model this small needs no second thread
    "learner.num_threads=1",
]
SAMPLED = [
    "rollout.max_tokens=8",
    "evaluate_every=0",
    "evaluation.num_prompts=null",
    "evaluation.samples_per_prompt=4",
    "save_every=0",
]
# Walkthroughs of a third of the training games, five and a half times each: enough to sometimes read the list
# of commands. The later stages also have games that the model can't know by heart.
WARM_UP = [
    f"task.num_train={SHOWN}",
    "algorithm=supervised",
    "model.dropout=false",
    "algorithm.learning_rate=2e-3",
    "algorithm.minibatch_size=2",
    "learner.lr_schedule=linear",
    "iterations=11",
    "rollout.prompts_per_iteration=120",
]
TRAINED = ["iterations=20", "rollout.prompts_per_iteration=128", "learner.lr_schedule=linear"]
ALGORITHMS = {
    # The critic shares the small trunk: at its usual weight the value loss would dominate the policy's.
    "ppo": [
        "algorithm=ppo",
        "algorithm.learning_rate=3e-4",
        "algorithm.num_epochs=2",
        "algorithm.minibatch_size=16",
        "algorithm.gamma=1.0",
        "algorithm.turn_gamma=0.95",
        "algorithm.value_coef=0.05",
        "algorithm.reward_scale=0.5",
        "algorithm.advantage_whitening=batch",
        "algorithm.kl.coefficient=0.02",
    ],
    "rejection": [
        "algorithm=rejection",
        "algorithm.learning_rate=5e-4",
        "algorithm.num_epochs=2",
        "algorithm.minibatch_size=32",
        "algorithm.top_share=0.5",
    ],
}


def make_model(folder: Path, seed: int = 0) -> None:
    """Save an untrained Llama (200,000 weights, three layers, width 64) with byte pairs of the games."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(
        ("<end>",),
        texts_of_walkthroughs(),
        VOCABULARY,
        eos_token="<end>",
        pad_token="<end>",
        model_max_length=WINDOW,
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def texts_of_walkthroughs() -> list[str]:
    """Return the texts of the warm start's games along their walkthroughs."""
    settings = TextWorld(hints="shuffled", hidden_verbs=("examine", "look", "inventory"))
    environment, texts = settings.make(), []
    for number, prompt in enumerate(Games(**TASK).prompts("train")[:SHOWN]):  # type: ignore[arg-type]
        observation = environment.reset(prompt, number)
        texts.append(observation.header)
        while observation.expert is not None:
            texts.append(f"{observation.text}{observation.hint} {observation.expert}\n")
            step = environment.step(observation.expert)
            if step.terminated:
                break
            observation = step.observation
    environment.close()
    return texts


def run(name: str, arguments: list[str]) -> float:
    """Run `whetstone train` unless that run is done; return its seconds."""
    command = [
        "whetstone",
        "train",
        "environment=textworld",
        "task=textworld",
        f"run_name={name}",
        f"output_dir={RUNS}",
        *SHARED,
        *SAMPLED,
        *arguments,
    ]
    print(" ".join(command), flush=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "services.cli", *command[1:]], check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=["warm", *ALGORITHMS])
    arguments = parser.parse_args()
    if not (MODEL / "config.json").exists():
        make_model(MODEL)
    if "warm" in arguments.only:
        run("warm", [f"model.path={MODEL}", *WARM_UP])
    for seed in arguments.seeds:
        for name in (name for name in ALGORITHMS if name in arguments.only):
            start = RUNS / "warm" / "model"
            run(f"{name}-seed{seed}", [f"model.path={start}", f"seed={seed}", *ALGORITHMS[name], *TRAINED])


if __name__ == "__main__":
    main()
