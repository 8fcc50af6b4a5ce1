"""Train by GRPO or RLOO of trl's newest version, in turns: python trl_groups.py ALGORITHM SHAPE FOLDER."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from turns import OPTIONS, read_prompts, serve
from work import KL_COEFFICIENT, LEARNING_RATE, Work


def parity(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return 1 for each completion whose last token has an odd id, else 0."""
    return [float(tokens[-1] % 2) for tokens in completion_ids]


def options(work: Work, iterations: int, output: str) -> dict[str, Any]:
    """Return the settings of one optimiser step a batch, with the KL in the loss."""
    return {
        "output_dir": output,
        "per_device_train_batch_size": work.sequences,
        "num_generations": work.group_size,
        "max_completion_length": work.new_tokens,
        "num_iterations": work.epochs,
        "max_steps": iterations,
        "beta": KL_COEFFICIENT,
        "learning_rate": LEARNING_RATE,
        "temperature": 1.0,
        "model_init_kwargs": {"dtype": "float32"},
        **OPTIONS,
    }


def parts(folder: Path, work: Work) -> dict[str, Any]:
    return {
        "model": str(folder),
        "reward_funcs": parity,
        "processing_class": AutoTokenizer.from_pretrained(folder),
        "train_dataset": Dataset.from_dict({"prompt": read_prompts(folder, work)}),
    }


def build_grpo(folder: Path, work: Work, iterations: int, output: str) -> GRPOTrainer:
    return GRPOTrainer(args=GRPOConfig(**options(work, iterations, output)), **parts(folder, work))


def build_rloo(folder: Path, work: Work, iterations: int, output: str) -> RLOOTrainer:
    return RLOOTrainer(args=RLOOConfig(**options(work, iterations, output)), **parts(folder, work))


if __name__ == "__main__":
    serve(("grpo", "rloo"), {"grpo": build_grpo, "rloo": build_rloo})
