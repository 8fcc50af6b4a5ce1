"""Runs with a template that rewrites its history, on Ray with vLLM: what is read, drawn and trained on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat_templates import STRIPS_REASONING, TEXTS, make_chat_model
from tests.contracts.test_chat import ONE, THREE
from tests.kept_rollouts import kept_in, measure_into
from tests.rollout_workers.test_chat_episodes import SAYS, USER
from tests.runs import ROOT, Run
from tests.test_templates import as_template, content_of, tokenizer_of

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]

TEMPLATE = TEXTS.get("qwen3", STRIPS_REASONING)
ITERATIONS, PROMPTS = 2, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("model") / "rewrites", TEMPLATE)


def played(model: Path, folder: Path, *overrides: str) -> tuple[Run, list[dict[str, Any]]]:
    """A whole run from its command; and every rollout that the learner got."""
    for split in ("train", "validation", "test"):
        lines = [json.dumps({"prompt": talk}) + "\n" for talk in (ONE, THREE) * (PROMPTS // 2)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    made = Run(
        folder,
        "run",
        *("task=prompts", f"task.data_files={folder}", f"model.path={model}", "metrics=[]"),
        *("reward=length", "reward.target=3", "rollout.engine=vllm", "rollout.max_tokens=8"),
        *(f"rollout.prompts_per_iteration={PROMPTS}", f"iterations={ITERATIONS}", "algorithm=grpo"),
        *("algorithm.num_epochs=1", "algorithm.minibatch_size=null", "rollout.group_size=2"),
        *("tracking.enabled=false", "save_every=0", "evaluate_every=0"),
        measure_into(folder / "kept.jsonl"),
        *overrides,
    )
    made.command = [word for word in made.command if not word.startswith("task.num_")]
    try:
        assert made.start().finish() == 0, made.output
    finally:
        made.end()
    rows = zip(made.folder.rollout_info(), made.folder.training_info(), strict=True)
    for row in (rolled | learned for rolled, learned in rows):
        assert row["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert row["mismatch/max_ratio"] < 1 + 1e-4
        print({key: row[key] for key in ("ratio/mean", "mismatch/max_ratio") if key in row})
    kept = kept_in(folder / "kept.jsonl")
    assert len(kept) == ITERATIONS * PROMPTS * 2
    for row in kept:
        assert row["trained"] == [token for answer in row["drawn"] for token in answer]
    return made, kept


def test_one_turn_and_an_evaluation_that_reads_the_same(model: Path, tmp_path: Path) -> None:
    run, kept = played(model, tmp_path)
    its = tokenizer_of(model)
    assert {tuple(row["contexts"][0]) for row in kept} == {as_template(its, talk) for talk in (ONE, THREE)}

    command = [
        sys.executable,
        "-P",
        "-m",
        "services.cli",
        "evaluate",
        str(run.folder.path),
        "--split",
        "test",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    evaluated = json.loads((run.folder.path / "evaluation_test.json").read_text())["predictions"]
    at_the_end = run.folder.predictions(ITERATIONS, "test")
    assert [row["generated_text"] for row in evaluated] == [row["generated_text"] for row in at_the_end]


@pytest.mark.parametrize("history", ["recorded", "template"])
def test_three_turns(model: Path, tmp_path: Path, history: str) -> None:
    environment = f"{{name: 'tests.rollout_workers.episodes:Told', says: {list(SAYS)}, num_parallel: 2}}"
    _, kept = played(model, tmp_path, f"environment={environment}", f"model.chat.history={history}")
    its = tokenizer_of(model)
    for row in kept:
        contexts = [tuple(tokens) for tokens in row["contexts"]]
        answers = [
            {"role": "assistant", "content": content_of(its, tuple(tokens))} for tokens in row["drawn"]
        ]
        assert contexts[0] == as_template(its, USER[:1])
        for turn in (1, 2):
            before = (*contexts[turn - 1], *row["drawn"][turn - 1])
            if history == "recorded":
                assert contexts[turn][: len(before)] == before
            else:
                talk = [message for pair in zip(USER, answers, strict=True) for message in pair]
                assert contexts[turn] == as_template(its, talk[: 2 * turn + 1])


def test_a_frozen_partner_has_its_own_template(model: Path, tmp_path: Path) -> None:
    """Three answers to a partner that reads by another template; what it said is the user's to the model."""
    partner = make_chat_model(tmp_path / "partner", TEXTS.get("gemma", TEXTS["refuses_system"]))
    options = f"{{model: {partner}, max_tokens: 8}}"
    talking = (
        f"{{name: dialogue, partner: frozen, partner_options: {options}, max_turns: 3, num_parallel: 2}}"
    )
    _, kept = played(model, tmp_path, f"environment={talking}")
    its = tokenizer_of(model)
    first = {as_template(its, talk) for talk in (ONE, THREE)}
    assert {tuple(row["contexts"][0]) for row in kept} == first
    talks = [row for row in kept if len(row["drawn"]) > 1]
    assert talks
    for row in talks:
        begin = len(row["contexts"][0]) + len(row["drawn"][0])
        heard = its.decode(row["contexts"][1][begin:])
        _, _, question = its.decode(
            as_template(its, [*THREE[:2], {"role": "user", "content": "@"}])
        ).partition(THREE[1]["content"])
        assert question.replace("@", row["seen"][1]).endswith(heard) and row["seen"][1] in heard
