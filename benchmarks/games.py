"""Text games by a small language model: warm-started on walkthroughs, then PPO and rejection sampling.

`python -m benchmarks.games` makes the games and the untrained model, runs every `whetstone train` that
docs/results/textworld.md names, and writes its table and picture. `--seeds`, `--only` run a part.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.outcome import OUT
from rollout_workers.environments.textworld import TextWorld
from services.tasks.textworld import TextWorld as Games

ROOT = OUT / "games"
MODEL, RUNS, PAGE = ROOT / "untrained", ROOT / "runs", Path("docs/results/textworld.md")
VOCABULARY, WINDOW = 600, 320
# The objective names the room to go to and no more, so the way has to be found.
TASK = {
    "challenge": "coin_collector",
    "level": 4,
    "max_level": 8,
    "num_train": 40,
    "num_validation": 20,
    "num_test": 40,
}
ENVIRONMENT = {"memory": 1, "max_turns": 12, "hints": "shuffled"}
SHARED = [
    *[f"task.{name}={value}" for name, value in TASK.items()],
    *[f"environment.{name}={value}" for name, value in ENVIRONMENT.items()],
    "environment.hidden_verbs=[examine,look,inventory]",
]
SAMPLED = ["rollout.max_tokens=8", "evaluation.num_prompts=null", "evaluation.samples_per_prompt=4"]
WARM_UP = [
    "iterations=6",
    "evaluate_every=0",
    "rollout.prompts_per_iteration=40",
    "algorithm.learning_rate=1e-3",
]
TRAINED = ["iterations=25", "evaluate_every=5", "rollout.prompts_per_iteration=64"]
ALGORITHMS = {
    "ppo": [
        "algorithm=ppo",
        "algorithm.learning_rate=5e-4",
        "algorithm.num_epochs=4",
        "algorithm.minibatch_size=32",
        "algorithm.gamma=1.0",
        "algorithm.turn_gamma=0.95",
        "algorithm.kl.coefficient=0.01",
    ],
    "rejection": [
        "algorithm=rejection",
        "algorithm.learning_rate=5e-4",
        "algorithm.num_epochs=4",
        "algorithm.minibatch_size=16",
        "algorithm.top_share=0.5",
    ],
}


def make_model(folder: Path, seed: int = 0) -> None:
    """An untrained Llama of a million weights: four layers, 128 wide; byte pairs of the games' texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(texts_of_walkthroughs(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token="<end>", pad_token="<end>", model_max_length=WINDOW
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=WINDOW,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def texts_of_walkthroughs() -> list[str]:
    """What the training games say to one who knows the way."""
    settings = TextWorld(hints="shuffled", hidden_verbs=("examine", "look", "inventory"))
    environment, texts = settings.make(), []
    for number, prompt in enumerate(Games(**TASK).prompts("train")):  # type: ignore[arg-type]
        said = environment.reset(prompt, number)
        texts.append(said.header)
        while said.expert is not None:
            texts.append(f"{said.text}{said.hint} {said.expert}\n")
            step = environment.step(said.expert)
            if step.terminated:
                break
            said = step.observation
    environment.close()
    return texts


def run(name: str, arguments: list[str]) -> float:
    """`whetstone train`, unless that run is done; returns its seconds."""
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
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=["warm", *ALGORITHMS])
    asked = parser.parse_args()
    if not (MODEL / "config.json").exists():
        make_model(MODEL)
    for seed in asked.seeds:
        warm = f"warm-seed{seed}"
        if "warm" in asked.only:
            run(warm, [f"model.path={MODEL}", "algorithm=supervised", f"seed={seed}", *WARM_UP])
        for name in (name for name in ALGORITHMS if name in asked.only):
            start = RUNS / warm / "model"
            run(f"{name}-seed{seed}", [f"model.path={start}", f"seed={seed}", *ALGORITHMS[name], *TRAINED])


if __name__ == "__main__":
    main()
