"""A whole run with an adapter: it learns, resumes, and leaves a model that anybody loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.config.compose import run_settings
from tests.local_run import train_here
from tests.models import make_tiny_model

OPTIONS = (
    "task=increasing_numbers",
    "task.num_prompts=16",
    "task.num_eval_prompts=4",
    "rollout.prompts_per_iteration=8",
    "rollout.max_tokens=8",
    "rollout.engine=transformers",
    "learner.num_threads=1",
    "learner.device=cpu",
    "algorithm.learning_rate=1e-2",
    "tracking.enabled=false",
    "model.adapter.r=4",
    "save_every=1",
)


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_a_run_with_an_adapter_resumes_and_leaves_a_plain_model(tmp_path: Path, kind: str) -> None:
    model = make_tiny_model(tmp_path / "base")

    def run(name: str, iterations: int) -> Any:
        named = (
            f"model.path={model}",
            f"output_dir={tmp_path}",
            f"run_name={name}",
            f"iterations={iterations}",
        )
        return train_here(run_settings([*OPTIONS, *named, f"model.adapter.kind={kind}"]))

    straight = run("straight", 3)
    run("resumed", 2)
    resumed = run("resumed", 3)
    weights = load_file(straight.model / "model.safetensors")
    assert all(
        tensor.equal(weights[name]) for name, tensor in load_file(resumed.model / "model.safetensors").items()
    )
    rows = straight.rollout_info()
    assert rows[0]["kl/mean"] == pytest.approx(0, abs=1e-6) and abs(rows[-1]["kl/mean"]) > 1e-6
    assert all(row["mismatch/max_ratio"] < 1 + 1e-4 for row in rows)  # workers wrote with the adapted weights
    lm = AutoModelForCausalLM.from_pretrained(straight.model)
    assert lm.dtype == torch.float32 and not hasattr(lm, "peft_config")
    adapter = json.loads((straight.model / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["peft_type"]) == (4, "LORA")
    checkpoint = load_file(straight.checkpoint(3) / "policy.safetensors")
    assert all(
        "lora_" in name or name.startswith(("critic.", "value_norm.")) or name == "frozen"
        for name in checkpoint
    )
