"""`whetstone generate`: whose model, how it is sampled, what is printed, and what is refused."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling, Turn
from services.commands.generate import run
from services.inference.generation.run_model import find_model
from services.inference.generation.writing import FEW, engine_for, in_order
from tests.models import make_tiny_model
from tests.services.test_cli import PROMISED_S, whetstone


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", window=32)


@pytest.fixture
def finished_run(tmp_path: Path, model: Path) -> Path:
    """A run that answers with 6 tokens in training and with the 4 likeliest in evaluation."""
    folder = tmp_path / "runs" / "numbers"
    folder.mkdir(parents=True)
    config = {
        "iterations": 3,
        "rollout": {"max_tokens": 6, "stop": ["99"]},
        "evaluation": {"max_tokens": 4, "temperature": 0.0, "num_prompts": 8},
        "task": {"name": "elsewhere.tasks:NotInstalledHere"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "model").symlink_to(model)
    return folder


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run([*arguments, "--json", "--engine", "transformers"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def likeliest(model: Path, prompt: str, num_tokens: int) -> str:
    """transformers' own greedy decoding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    read = tokenizer(prompt, return_tensors="pt")["input_ids"]
    lm = AutoModelForCausalLM.from_pretrained(model)
    written = lm.generate(read, max_new_tokens=num_tokens, do_sample=False)[0, read.shape[1] :]
    return str(tokenizer.decode(written, skip_special_tokens=True))


# What is written


def test_without_temperature_the_likeliest_text_is_written(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lines(capsys, str(model), "--prompt", "3 5", "8 9 10", "--max-tokens", "7", "--temperature", "0")
    assert [row["prompt"] for row in rows] == ["3 5", "8 9 10"]
    assert [row["prediction"] for row in rows] == [likeliest(model, row["prompt"], 7) for row in rows]


def test_a_seed_repeats_and_samples_of_one_prompt_differ(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(model), "--prompt", "3 5", "--n", "3", "--max-tokens", "8")
    first, again, other = (lines(capsys, *arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other
    assert [row["sample"] for row in first] == [0, 1, 2]
    assert len({row["prediction"] for row in first}) == 3  # 100 ** 8 texts are about equally likely


def test_a_run_is_sampled_as_it_was_evaluated_unless_told_otherwise(
    finished_run: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_model(str(finished_run)).sampling == Sampling(max_tokens=4, temperature=0.0, stop=("99",))
    (row,) = lines(capsys, str(finished_run), "--prompt", "3 5")
    assert row["prediction"] == likeliest(model, "3 5", 4)
    (row,) = lines(capsys, str(finished_run), "--prompt", "3 5", "--max-tokens", "5")
    assert row["prediction"] == likeliest(model, "3 5", 5)


def test_a_file_s_other_columns_are_passed_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "3 5", "references": ["6"]}\n\n{"prompt": "7", "references": ["8"]}\n')
    rows = lines(capsys, str(model), "--prompts", str(file), "--max-tokens", "2")
    assert [(row["prompt"], row["references"]) for row in rows] == [("3 5", ["6"]), ("7", ["8"])]


def test_piped_lines_are_prompts_and_a_person_reads_them_quoted(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("3 5\n\n7\r\n"))
    assert run([str(model), "--temperature", "0", "--max-tokens", "3"]) == 0
    expected = "".join(f"> {prompt}\n{likeliest(model, prompt, 3)}\n\n" for prompt in ("3 5", "7"))
    assert capsys.readouterr().out == expected


@pytest.mark.vllm
def test_both_engines_write_the_same(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(model), "--prompt", "3 5", "8 9 10", "--max-tokens", "6", "--temperature", "0"]
    command = [sys.executable, "-m", "services.cli", "generate", *arguments, "--json", "--engine", "vllm"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()] == lines(capsys, *arguments)


def test_what_the_model_does_not_read_of_a_prompt_is_said(
    finished_run: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run was evaluated: at most 4 tokens of a prompt."""
    config = yaml.safe_load((finished_run / "config.yaml").read_text())
    config["rollout"]["max_prompt_tokens"] = 4
    (finished_run / "config.yaml").write_text(yaml.safe_dump(config))
    long = " ".join(map(str, range(1, 18)))
    arguments = [str(finished_run), "--prompt", "3 5", long, "--engine", "transformers", "--n", "2"]
    assert run([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    short, _, cut, again = map(json.loads, printed.out.splitlines())
    assert "prompt_as_read" not in short
    assert (cut["prompt"], cut["prompt_as_read"]) == (long, "14 15 16 17") == (long, again["prompt_as_read"])
    assert cut["prediction"] == likeliest(model, "14 15 16 17", 4)
    warning = (
        "warning: 1 of 2 (50%) prompts are longer than 4 tokens (rollout.max_prompt_tokens): the model reads"
    )
    assert printed.err.count(warning) == 1
    assert run(arguments) == 0
    assert warning in capsys.readouterr().err


# In which order, and by what


def test_texts_come_in_the_order_of_their_prompts_as_soon_as_they_can() -> None:
    leases = [Lease(n, Prompt(str(n), "3"), (6,), n, seed=0, sampling=Sampling(1)) for n in range(4)]
    rollouts = [_rollout(lease) for lease in leases]
    seen: list[int] = []

    def finished() -> Any:
        yield [rollouts[2]]
        assert seen == []
        yield [rollouts[1], rollouts[0]]
        assert seen == [0, 1, 2]
        yield []
        yield [rollouts[3]]

    for rollout in in_order(leases, finished()):
        seen.append(rollout.lease_id)
    assert seen == [0, 1, 2, 3]


def _rollout(lease: Lease) -> Rollout:
    turn = Turn(lease.tokens, (7,), "4", (-1.0,), (0,))
    return Rollout(lease.id, lease.group, lease.prompt, (turn,), FinishReason.LENGTH)


def test_vllm_writes_what_is_worth_its_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    small = find_model(str(make_tiny_model(tmp_path / "gpt", architecture="gpt2")))
    gpt = replace(small, files=replace(small.files, num_parameters=124_439_808))
    best = "vllm" if find_spec("vllm") else "transformers"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engine_for("auto", FEW, gpt) == "transformers"
    assert engine_for("auto", FEW + 1, gpt) == best
    assert engine_for("auto", FEW + 1, small) == "transformers"
    assert engine_for("transformers", FEW + 1, gpt) == "transformers"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert engine_for("auto", 1, gpt) == best


# Refusals


def refusal(*arguments: str, cwd: Path | None = None) -> str:
    done = whetstone("generate", *arguments, cwd=cwd)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert done.cpu_s < PROMISED_S
    return done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--temperature", "-1"], "temperature: got -1.0; Input should be greater than or equal to 0"),
        (["--top-p", "1.5"], "top_p: got 1.5"),
        (["--max-tokens", "32"], "the model reads 32 tokens in all"),
        (["--max-tokens", "30"], "prompt 1 has 3 tokens, and the model's window leaves room for 2"),
        (["--n", "0"], "argument --n: got 0; expected 1 or more"),
        (["--engine", "llama"], "invalid choice: 'llama'"),
        (["--prompts", "nothing.jsonl"], "--prompts: nothing.jsonl does not exist"),
    ],
)
def test_wrong_options_are_refused_at_once(model: Path, arguments: list[str], expected: str) -> None:
    assert expected in refusal(str(model), "--prompt", "1 2 3", *arguments)


def test_no_prompt_at_all(model: Path) -> None:
    assert "give --prompt TEXT, --prompts FILE.jsonl, or lines on standard input" in refusal(str(model))


def test_a_file_without_the_column_names_those_there_are(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "3"}\n')
    message = refusal(str(model), "--prompts", str(tmp_path / "a.jsonl"))
    assert "line 1: there is no column 'prompt'; there are: text" in message
    (tmp_path / "a.jsonl").write_text('{"prompt": 3}\n')
    assert "expected a text in column 'prompt', got 3" in refusal(
        str(model), "--prompts", str(tmp_path / "a.jsonl")
    )


def test_a_run_that_is_not_there_is_answered_with_those_that_are(finished_run: Path) -> None:
    message = refusal("runs/number", "--prompt", "3", cwd=finished_run.parent.parent)
    assert "runs/number: there is no such folder" in message
    assert "Runs nearby, newest first:\n  runs/numbers" in message


def test_a_run_in_progress_says_how_to_end_it(finished_run: Path) -> None:
    (finished_run / "model").unlink()
    message = refusal(str(finished_run), "--prompt", "3")
    assert "has no model yet: training writes it after its last iteration (3)" in message
    assert "iterations=" not in message
    (finished_run / "checkpoints" / "2").mkdir(parents=True)
    assert "with iterations=2 it ends at the newest checkpoint" in refusal(str(finished_run), "--prompt", "3")
