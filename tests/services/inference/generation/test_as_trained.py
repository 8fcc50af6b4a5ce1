"""A run's model reads prompts and samples tokens as in its run, and differences are reported."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.commands import generate
from services.config import compose
from services.config.settings import RunSettings
from services.inference.generation.run_model import find_model
from services.models.files import read_model
from services.runs.folder import RunFolder
from tests.chat_templates import DEFAULT_SYSTEM, make_chat_model
from tests.models import make_tiny_model

RAW = "task.parts.numbers={task: increasing_numbers, truncation_side: right}"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    make_chat_model(run.model, DEFAULT_SYSTEM)
    return run


def mixture(folder: RunFolder, *parts: str) -> RunSettings:
    """Settings of a mixture, written into the run's folder."""
    overrides = [
        f"model.path={folder.model}",
        "algorithm=grpo",
        "task=mixture",
        "rollout.max_prompt_tokens=90",
    ]
    run = compose.run_settings([*overrides, "reward=length", *parts])
    folder.config_file.write_text(yaml.safe_dump(json.loads(json.dumps(run.resolved(), default=str))))
    return run


def chats(folder: RunFolder, name: str, system: str) -> str:
    file = folder.path / "chats.jsonl"
    file.write_text('{"prompt": "What is 3 ?"}\n' * 20)
    return f"task.parts.{name}={{task: prompts, data_files: {file}, chat: {{system: {system}}}}}"


def readings(run: RunSettings) -> list[Any]:
    files = read_model(run.model)
    return [(part.prompt_limit("validation"), part.chat_form(files)) for part in run.by_task.values()]


@pytest.mark.parametrize("system", [None, "Brief"])
def test_a_mixture_is_read_as_its_only_part_reads(folder: RunFolder, system: str | None) -> None:
    """Raw texts have no template, though the tokenizer has one; a part's system message is its own."""
    run = mixture(folder, chats(folder, "chat", system) if system else RAW)
    model = find_model(str(folder.path))
    assert [(model.limit, model.chat)] == readings(run)
    assert (model.chat and model.chat.system, model.notes) == (system, ())


def test_parts_that_differ_are_read_as_the_first_and_that_is_said(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run = mixture(folder, chats(folder, "chat", "Brief"), RAW)
    model = find_model(str(folder.path))
    first, second = readings(run)
    assert (model.limit, model.chat) == first != second
    options = ["--prompt", "3", "--max-tokens", "1", "--engine", "transformers"]
    assert generate.run([str(folder.path), *options]) == 0
    printed = capsys.readouterr().err
    assert "as by its part chat: --template and --system choose otherwise" in printed


def test_the_evaluations_penalty_is_kept_and_beams_are_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = RunFolder(tmp_path / "run")
    make_tiny_model(folder.model)
    drawn = {"max_tokens": 8, "temperature": 0.0, "repetition_penalty": 9.0, "num_beams": 2}
    folder.config_file.write_text(yaml.safe_dump({"evaluation": drawn}))
    tokenizer, lm = (kind.from_pretrained(folder.model) for kind in (AutoTokenizer, AutoModelForCausalLM))
    read = tokenizer("3 5", return_tensors="pt")["input_ids"]
    plain, expected = (
        tokenizer.decode(lm.generate(read, max_new_tokens=8, do_sample=False, **more)[0, 2:])
        for more in ({}, {"repetition_penalty": 9.0})
    )
    assert plain != expected

    assert generate.run([str(folder.path), "--prompt", "3 5", "--json", "--engine", "transformers"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["prediction"] == expected
    assert (
        printed.err.count("search with 2 beams (evaluation.num_beams); this command draws without beams") == 1
    )
