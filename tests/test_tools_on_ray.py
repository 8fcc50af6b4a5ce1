"""A run with tools on Ray: calls that a model draws, results that it reads, and what it is trained on."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.runs.json_lines import read_rows
from tests.chat_templates import CALLS_TOOLS, make_chat_model
from tests.kept_rollouts import kept_in, measure_into
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'
ITERATIONS, PROMPTS = 3, 16


def make_calling_model(folder: Path, calls: Sequence[str] = (CALL,)) -> Path:
    """Make a model that writes one of the calls, each one token, or its end, with equal probability.

    Attention and layers add nothing. The first number of each embedding is the only large one, and the rows
    of the head for calls and the end read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    make_chat_model(folder, CALLS_TOOLS)
    its, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    its.add_tokens(list(calls))
    model.resize_token_embeddings(len(its))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.mul_(0.1)[:, 0] = 10.0
        model.lm_head.weight.mul_(0.1)[:, 0] = 0.0
        drawn = [*its.convert_tokens_to_ids(list(calls)), its.eos_token_id]
        model.lm_head.weight[drawn, 0] = 1.5  # logits of 12
    model.save_pretrained(folder)
    its.save_pretrained(folder)
    return folder


def test_calls_are_made_rewarded_and_learned_and_results_are_masked(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        lines = [json.dumps({"prompt": f"6 * 7 is what, {number} ?"}) + "\n" for number in range(PROMPTS)]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    run = Run(
        tmp_path,
        "run",
        *(
            "task=prompts",
            f"task.data_files={tmp_path}",
            f"model.path={make_calling_model(tmp_path / 'model')}",
        ),
        *("metrics=[]", "reward=[]", "environment=tools", "environment.tools=[calculator]"),
        *(
            "environment.call_rewards={calculator: 1.0}",
            "environment.max_turns=3",
            "environment.num_parallel=2",
        ),
        *("rollout.engine=vllm", "rollout.max_tokens=4", f"rollout.prompts_per_iteration={PROMPTS}"),
        *(
            "algorithm=grpo",
            "rollout.group_size=4",
            f"iterations={ITERATIONS}",
            "algorithm.learning_rate=1e-2",
        ),
        *("tracking.enabled=false", "save_every=0", "evaluate_every=0"),
        measure_into(tmp_path / "kept.jsonl"),
    )
    run.command = [word for word in run.command if not word.startswith("task.num_")]
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    kept = kept_in(tmp_path / "kept.jsonl")
    assert len(kept) == ITERATIONS * PROMPTS * 4
    assert {len(row["drawn"]) for row in kept} == {1, 2, 3}
    for row in kept:
        assert row["trained"] == [token for answer in row["drawn"] for token in answer]
    rows = run.folder.rollout_info()
    for row in rows:  # every call that was made earned 1
        assert row["environment/calls/mean"] == pytest.approx(row["reward/mean"])
        assert row["environment/call_errors/mean"] == row["environment/failed"] == 0
    # At first an answer of four tokens has 1/2 + 1/4 + 1/8 + 1/16 calls, an episode 1 + 1/2 + 1/4 answers,
    # so 1.64 calls. The standard error over 64 episodes is about 0.25.
    assert rows[0]["reward/mean"] == pytest.approx(1.64, abs=0.8)
    before, after = (row["metrics"]["reward/mean"] for row in run.folder.evaluations("val"))
    assert after > before + 2
    played = [row["turns"] for row in run.folder.predictions(ITERATIONS, "test") if len(row["turns"]) > 1]
    for first, second, *_ in played:
        results = ["<tool_response>\n42\n</tool_response>"] * first["answer"].count(CALL)
        assert second["observation"].strip() == "\n".join(results)
    assert played and read_rows(run.folder.episodes)
