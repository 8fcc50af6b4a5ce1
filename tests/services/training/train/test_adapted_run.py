"""A whole run with an adapter: it learns, resumes, and leaves a model that anybody loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.config.compose import run_settings
from services.training.preflight.start_model import opened
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


def test_a_runs_adapter_is_a_model_to_train_further_and_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = make_tiny_model(tmp_path / "base")

    def run(name: str, iterations: int, path: Path, *more: str) -> Any:
        named = (f"model.path={path}", f"output_dir={tmp_path}", f"run_name={name}")
        options = [option for option in OPTIONS if not option.startswith("model.")]
        return train_here(opened(run_settings([*options, *named, f"iterations={iterations}", *more])))

    first = run("first", 1, model, "model.adapter.kind=lora", "model.adapter.r=4")
    adapter = first.model / "adapter"
    straight = run("straight", 2, adapter)
    run("resumed", 1, adapter)
    resumed = run("resumed", 2, adapter)
    weights = load_file(straight.model / "model.safetensors")
    assert all(
        tensor.equal(weights[name]) for name, tensor in load_file(resumed.model / "model.safetensors").items()
    )
    rows = straight.rollout_info()
    assert rows[0]["kl/mean"] == pytest.approx(0, abs=1e-6) and abs(rows[-1]["kl/mean"]) > 1e-6
    assert all(row["mismatch/max_ratio"] < 1 + 1e-4 for row in rows)
    assert straight.config()["model"]["adapter"]["path"] == str(adapter)
    saved = json.loads((straight.model / "adapter" / "adapter_config.json").read_text())
    assert (saved["base_model_name_or_path"], saved["r"]) == (str(model), 4)
