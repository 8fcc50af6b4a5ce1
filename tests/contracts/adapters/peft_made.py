"""Adapters that peft itself makes and saves, away from their beginning, where they change nothing."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tests.models import Architecture, make_tiny_model

TEXT = torch.arange(3, 30)[None]


def kind_of(base: Path) -> Any:
    return AutoModelForSeq2SeqLM if base.name in ("t5", "bart", "mt5") else AutoModelForCausalLM


def base_of(folder: Path, architecture: Architecture) -> Path:
    base = folder / architecture
    return base if base.exists() else make_tiny_model(base, architecture=architecture)


def make_adapter(
    folder: Path, architecture: Architecture = "llama", name: str = "adapter", **options: Any
) -> Path:
    """Write an adapter of a tiny model beside it; return its folder."""
    base = base_of(folder, architecture)
    usual = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    if kind_of(base) is AutoModelForSeq2SeqLM:
        usual["task_type"] = "SEQ_2_SEQ_LM"
    model = get_peft_model(kind_of(base).from_pretrained(base), LoraConfig(**{**usual, **options}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model.save_pretrained(str(folder / name))
    return folder / name


@torch.no_grad()
def logprobs(lm: Any) -> torch.Tensor:
    more = {"decoder_input_ids": TEXT} if lm.config.is_encoder_decoder else {}
    logprobs: torch.Tensor = lm.eval()(input_ids=TEXT, **more).logits.log_softmax(-1)
    return logprobs
