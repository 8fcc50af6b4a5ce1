"""Sums in GSM8K's form: their files, the tiny instruct model, and what GRPO makes of it."""

import re
from pathlib import Path

import pytest

from benchmarks.studies import arithmetic as bench
from benchmarks.studies.arithmetic_files import END, make_model, write_questions
from benchmarks.studies.arithmetic_report import before_and_after, check, gain
from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Prompt
from services.data.tasks.gsm8k import Gsm8k
from services.runs.folder import RunFolder


def numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def test_the_task_reads_questions_whose_answers_are_right_and_whose_numbers_come_once(tmp_path: Path) -> None:
    write_questions(tmp_path)
    shown, questions = (Gsm8k(data_files=str(tmp_path / name)) for name in ("shown", "asked"))
    splits: list[list[Prompt]] = [
        list(prompts)
        for prompts in (shown.prompts("train"), questions.prompts("train"), questions.prompts("validation"))
    ]
    splits.append(list(questions.prompts("test")))
    assert [prompt.text for prompt in shown.prompts("test")] == [prompt.text for prompt in splits[-1]]
    pairs = []
    for prompt in (prompt for split in splits for prompt in split):
        first, second = numbers(prompt.text)
        assert numbers(prompt.references[0]) == [first, second, first + second, first + second]
        pairs.append((first, second))
    assert len(pairs) == 1100 + 1100 + 50 + 200
    assert len(set(pairs)) == len(pairs)


def test_the_model_reads_chats_and_a_token_for_each_digit(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    make_model(tmp_path / "model", write_questions(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = Chat(tokenizer, ChatForm())
    read = chat.pieces(chat.text([{"role": "user", "content": "Ada has 12 coins."}]))
    assert "".join(read) == "<|im_start|>user\nAda has 12 coins.<|im_end|>\n<|im_start|>assistant\n"
    assert {"1", "2", " coins", END} <= set(read)
    assert chat.answer("#### 7")[-1] == tokenizer.eos_token_id == chat.end_token


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_grpo_raises_the_accuracy_by_five_standard_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("ROOT", ""), ("MODEL", "untrained"), ("RUNS", "runs"), ("SECONDS", "seconds.txt")):
        monkeypatch.setattr(bench, name, tmp_path / place)

    bench.make(["warm", "grpo"], [0])

    run = RunFolder(tmp_path / "runs" / "grpo-seed0")
    change, error = gain(run)
    (before, _), _ = before_and_after(run)
    assert 0.1 < before["mean@4"] < 0.5
    assert change > 5 * error
    assert check(run) < 1e-9  # brute force finds the same numbers
