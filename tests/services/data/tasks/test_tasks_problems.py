"""Tasks with right answers: gsm8k, math, reasoning_gym."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from contracts.errors import InputError
from contracts.literals import packed, unpacked
from contracts.scores import Sample
from reward_servers.graders.math import Math as MathReward
from reward_servers.graders.reasoning_gym import ReasoningGym as Scorer
from services.data.tasks.gsm8k import Gsm8k
from services.data.tasks.math import Math
from services.data.tasks.reasoning_gym import ReasoningGym

SOLUTION = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72.\n#### 72"
needs_reasoning_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_gsm8k_reads_questions_and_solutions(tmp_path: Path, kind: str) -> None:
    rows = [{"question": f"How many? {n}", "answer": SOLUTION} for n in range(10)]
    file = str(tmp_path / f"train.{kind}")
    if kind == "jsonl":
        written(Path(file), rows)
    else:
        datasets.Dataset.from_list(rows).to_parquet(file)
    first, *rest = Gsm8k(data_files=file, prompt_suffix=" Box it.").prompts("train")
    assert (first.id, first.text, first.references) == ("gsm8k/train/0", "How many? 0 Box it.", (SOLUTION,))
    assert len(rest) == 7  # the ninth row is for validation, the tenth for the test
    sample = Sample(r"So \boxed{72}.", first.text, first.references)
    assert MathReward().score([sample, Sample("71", references=first.references)]) == [1.0, 0.0]


def test_gsm8k_takes_numbers_and_refuses_what_is_no_answer(tmp_path: Path) -> None:
    good = written(tmp_path / "a.jsonl", [{"question": "6 · 7?", "answer": 42}] * 10)
    assert Gsm8k(data_files=good).prompts("train")[0].references == ("42",)
    bad = written(tmp_path / "b.jsonl", [{"question": "6 · 7?", "answer": None}])
    with pytest.raises(InputError, match=r"line 1: expected a text or a number in column 'answer', got None"):
        Gsm8k(data_files=bad).prompts("train")
    empty = written(tmp_path / "c.jsonl", [{"question": " ", "answer": "1"}])
    with pytest.raises(InputError, match="the prompt is empty"):
        Gsm8k(data_files=empty, prompt_suffix="!").prompts("train")


def test_math_reads_answers_or_solutions(tmp_path: Path) -> None:
    solved = {"problem": "1 + 1?", "solution": r"It is \boxed{2}.", "level": "Level 1", "type": "Algebra"}
    answered = {"problem": "1 + 2?", "answer": "3", "solution": "Count."}
    file = written(tmp_path / "a.jsonl", [solved, answered] * 10)
    first, second = Math(data_files={"train": file, "validation": file, "test": file}).prompts("test")[:2]
    assert first.references == (r"It is \boxed{2}.",) and first.meta == {
        "level": "Level 1",
        "type": "Algebra",
    }
    assert second.references == ("3",)
    assert MathReward().score([Sample("2", references=first.references)]) == [1.0]
    none = written(tmp_path / "b.jsonl", [{"problem": "1 + 1?"}])
    with pytest.raises(InputError, match="expected a column 'answer' or 'solution'"):
        Math(data_files=none).prompts("train")


@needs_reasoning_gym
def test_reasoning_gym_makes_disjoint_splits_that_never_change() -> None:
    task = ReasoningGym(
        dataset="chain_sum", num_prompts=5, num_eval_prompts=2, options={"max_terms": 3}, seed=7
    )
    splits = [task.prompts(split) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [5, 2, 2]
    assert len({prompt.text for split in splits for prompt in split}) == 9
    assert task.prompts("train") == splits[0]
    more = ReasoningGym(
        dataset="chain_sum", num_prompts=7, num_eval_prompts=1, options={"max_terms": 3}, seed=7
    )
    assert [prompt.text for prompt in more.prompts("train")][:5] == [prompt.text for prompt in splits[0]]


@needs_reasoning_gym
def test_reasoning_gym_scores_as_its_own_scorers() -> None:
    import reasoning_gym

    for name in ("chain_sum", "arc_agi", "knights_knaves"):  # a number, tuples, values that are no literals
        prompts = ReasoningGym(dataset=name, num_prompts=2, num_eval_prompts=1, seed=3).prompts("train")
        data_set = reasoning_gym.create_dataset(name, seed=3, size=2)
        texts = [str(data_set[0]["answer"]), "wrong", f"<answer>{data_set[1]['answer']}</answer>"]
        places = (0, 0, 1)
        samples = [
            Sample(text, prompts[place].text, prompts[place].references, prompts[place].meta)
            for text, place in zip(texts, places, strict=True)
        ]
        answers = [texts[0], "wrong", str(data_set[1]["answer"])]
        expected = [
            data_set.score_answer(answer, data_set[place])
            for answer, place in zip(answers, places, strict=True)
        ]
        assert Scorer().score(samples) == expected, name
        assert [expected[0], expected[2]] == [1.0, 1.0]


@needs_reasoning_gym
def test_generators_that_go_through_sets_give_the_same_in_each_process() -> None:
    code = (
        "from services.data.tasks.reasoning_gym import ReasoningGym\n"
        "task = ReasoningGym(dataset='word_ladder', num_prompts=3, num_eval_prompts=1)\n"
        "print([(p.text, p.references) for p in task.prompts('train')])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""


@needs_reasoning_gym
def test_reasoning_gym_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match=r"task\.dataset=chain_sums: there is no such data set.*chain_sum"):
        ReasoningGym(dataset="chain_sums").prompts("train")
    with pytest.raises(InputError, match=r"does not take task\.options={'terms': 3}"):
        ReasoningGym(dataset="chain_sum", options={"terms": 3}).prompts("train")


def test_without_reasoning_gym_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'whetstone\[reasoning\]'"):
        ReasoningGym(dataset="chain_sum").prompts("train")


@pytest.mark.parametrize("value", [{1: (2, {3})}, [None, True, 1.5], "json:", {"a": ["b"]}, ()])
def test_entries_come_back_as_they_were(value: Any) -> None:
    assert unpacked(packed(value)) == value
