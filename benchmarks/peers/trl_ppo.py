"""Train by PPO of trl 1.12, in turns: python trl_ppo.py ppo SHAPE FOLDER. Later versions have no PPO."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from turns import OPTIONS, read_prompts, serve
from work import LEARNING_RATE, Work


class FreeReward(torch.nn.Module):
    """The cheapest reward model that trl accepts: 1 if the text's last token has an odd id, else 0.

    trl calls `reward.<base_model_prefix>(input_ids=...)`, then `reward.score` on the last hidden states.
    """

    base_model_prefix = "parity"
    score = torch.nn.Identity()

    def parity(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Return the parity of each token's id, 0 or 1, as a hidden state of width 1."""
        return SimpleNamespace(hidden_states=((input_ids % 2).float().unsqueeze(-1),))


def build_trainer(folder: Path, work: Work, iterations: int, output: str) -> PPOTrainer:
    """Build trl's trainer in the documented way."""
    settings = PPOConfig(
        output_dir=output,
        per_device_train_batch_size=work.prompts,
        num_mini_batches=1,
        num_ppo_epochs=work.epochs,
        total_episodes=iterations * work.prompts,
        response_length=work.new_tokens,
        local_rollout_forward_batch_size=work.prompts,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        stop_token=None,
        missing_eos_penalty=None,
        num_sample_generations=0,
        **OPTIONS,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(folder),
        ref_model=AutoModelForCausalLM.from_pretrained(folder),
        reward_model=FreeReward(),
        value_model=AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1),
        train_dataset=Dataset.from_dict({"input_ids": tokenizer(read_prompts(folder, work))["input_ids"]}),
    )


if __name__ == "__main__":
    serve(("ppo",), {"ppo": build_trainer})
