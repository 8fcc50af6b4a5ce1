"""`whetstone train` of two roles with an adapter each: vLLM answers each role by its own."""

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from contracts.errors import InputError
from services.inference.generation.run_model import find_model
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.fault_kit import options
from tests.rollout_workers.programs.test_programs import AGENT
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]


def test_each_role_is_answered_and_trained_by_its_own_adapter(tmp_path: Path) -> None:
    rows = [{"prompt": f"debates {number}"} for number in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = make_chat_model(tmp_path / "model", TEMPLATES["default_system"])
    run = Run(
        tmp_path,
        "debates",
        *options(model),
        *("task=prompts", f"task.data_files={tmp_path / 'prompts.jsonl'}", "rollout.engine=vllm"),
        *("algorithm=rloo", "algorithm.learning_rate=1e-2", "rollout.group_size=4"),
        *("environment=program", "environment.num_parallel=4"),
        f"environment.command='{sys.executable} {AGENT} {{prompt}}'",
        f"environment.partner_options={{model: {model}, max_tokens: 4}}",
        *("environment.step_timeout_s=120", "environment.start_timeout_s=120", "rollout.stall_timeout_s=300"),
        *("model.adapter.kind=lora", "model.adapter.serve=adapter", "model.adapter.roles=[pro,con]"),
        *("rollout.max_tokens=6", "rollout.prompts_per_iteration=4", "iterations=3"),
    )
    run.command = [word for word in run.command if not word.startswith("task.num_")]
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    assert [row["rollouts/trained"] for row in run.folder.rollout_info()] == 3 * [2 * 4 * 4]
    updates = run.folder.training_info()
    assert len(updates) == 3
    for row in updates:
        for role in ("pro", "con"):  # the learner computes what the engine drew with, adapter by adapter
            assert row[f"role/{role}/mismatch/max_ratio"] < 1 + 1e-4
            assert row[f"role/{role}/rollouts/trained"] == 4 * 4
    adapters = run.folder.path / "model" / "adapter"
    pro, con = (load_file(adapters / role / "adapter_model.safetensors") for role in ("pro", "con"))
    assert pro.keys() == con.keys()
    for one in (pro, con):
        assert any(bool(value.any()) for key, value in one.items() if "lora_B" in key)
    assert not any(pro[key].equal(con[key]) for key in pro if "lora_B" in key)
    with pytest.raises(InputError, match=r"expected one of these adapters.*con, .*pro$"):
        find_model(str(run.folder.path))
    assert find_model(str(adapters / "pro")).path != find_model(str(adapters / "con")).path
    exported = load_file(run.folder.path / "model" / "model.safetensors")
    assert all(exported[key].equal(value) for key, value in load_file(model / "model.safetensors").items())
