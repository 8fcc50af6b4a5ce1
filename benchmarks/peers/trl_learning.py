"""Train by GRPO (trl 1.16) or PPO (trl 1.12): python trl_learning.py ALGORITHM MODEL PROMPTS SEED.

Print a line of JSON: the mean reward of each iteration's responses, and the seconds since training began.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from lesson import LESSONS, Lesson, share_of_letter
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from turns import OPTIONS


class Curve(TrainerCallback):
    """Mean rewards of the iterations, and the seconds at which each iteration ended."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.seconds: list[float] = []
        self._began = 0.0

    def reward(self, completions: Sequence[str]) -> list[float]:
        shares = share_of_letter(completions)
        self.rewards.append(sum(shares) / len(shares))
        return shares

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


class TextReward(torch.nn.Module):
    """Reward model of trl's PPO that reads the response's text; every prompt has `prompt_tokens` tokens."""

    base_model_prefix = "read"
    score = torch.nn.Identity()

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_tokens: int, curve: Curve) -> None:
        super().__init__()
        self._tokenizer, self._prompt_tokens, self._curve = tokenizer, prompt_tokens, curve

    def read(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Return the reward as a hidden state of width 1 at every token."""
        responses = input_ids[:, self._prompt_tokens :]
        texts = self._tokenizer.batch_decode(responses, skip_special_tokens=True)
        rewards = torch.tensor(self._curve.reward(texts))
        return SimpleNamespace(hidden_states=(rewards[:, None, None].expand(*input_ids.shape, 1),))


def grpo(lesson: Lesson, model: Path, texts: list[str], curve: Curve, common: dict[str, Any]) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    def share(completions: list[str], **_: Any) -> list[float]:
        return curve.reward(completions)

    settings = GRPOConfig(
        per_device_train_batch_size=lesson.sequences,
        num_generations=lesson.group_size,
        max_completion_length=lesson.new_tokens,
        num_iterations=lesson.epochs,
        max_steps=lesson.iterations,
        beta=lesson.kl_coefficient,
        loss_type="grpo",
        model_init_kwargs={"dtype": "float32"},
        **common,
    )
    return GRPOTrainer(
        model=str(model),
        args=settings,
        reward_funcs=share,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_dict({"prompt": texts}),
    )


def ppo(lesson: Lesson, model: Path, texts: list[str], curve: Curve, common: dict[str, Any]) -> Any:
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(texts)["input_ids"]
    settings = PPOConfig(
        per_device_train_batch_size=lesson.sequences,
        num_mini_batches=1,
        num_ppo_epochs=lesson.epochs,
        total_episodes=lesson.iterations * lesson.sequences,
        response_length=lesson.new_tokens,
        local_rollout_forward_batch_size=lesson.sequences,
        kl_coef=lesson.kl_coefficient,
        stop_token="eos",
        num_sample_generations=0,
        **common,
    )
    return PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(model),
        ref_model=AutoModelForCausalLM.from_pretrained(model),
        reward_model=TextReward(tokenizer, len(ids[0]), curve),
        value_model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=1),
        train_dataset=Dataset.from_dict({"input_ids": ids}),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithm", choices=LESSONS)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("seed", type=int)
    arguments = parser.parse_args()
    lesson, curve, answers = LESSONS[arguments.algorithm], Curve(), sys.stdout
    texts = [
        json.loads(line)["prompt"] for line in arguments.prompts.read_text(encoding="utf-8").splitlines()
    ]
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as output:
        common = {
            "output_dir": output,
            "learning_rate": lesson.learning_rate,
            "temperature": 1.0,
            "max_grad_norm": 1.0,
            "seed": arguments.seed,
            **OPTIONS,
        }
        trainer = {"grpo": grpo, "ppo": ppo}[arguments.algorithm](
            lesson, arguments.model, texts, curve, common
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(curve)
        trainer.train()
    print(json.dumps({"rewards": curve.rewards, "seconds": curve.seconds}), file=answers)


if __name__ == "__main__":
    main()
