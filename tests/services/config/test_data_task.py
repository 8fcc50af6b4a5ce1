"""The task of a run on rows: the same prompts as training's, and never those that it trains on."""

import json
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.training.sources.own_rows import rows_of


def composed(file: Path, rows: list[dict[str, object]], *words: str) -> RunSettings:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_settings([f"data={file}", "model.path=gpt2", *words])


def test_evaluations_ask_no_prompt_that_training_reads(tmp_path: Path) -> None:
    """KTO's rows: two to a prompt, all in one file."""
    rows = [{"prompt": f"q{i // 2}", "completion": f" {i}", "label": i % 2 == 0} for i in range(40)]
    run = composed(tmp_path / "rows.jsonl", rows, "algorithm=kto")
    for split in ("validation", "test"):
        trained = {row.prompt.text for row in rows_of(run.data, "train").rows}
        held_out = [prompt.text for prompt in run.task.prompts(split)]
        assert len(trained) == 16 and sorted(set(held_out)) == sorted(
            {row.prompt.text for row in rows_of(run.data, split).rows}
        )
        assert not trained & set(held_out)


def test_a_file_of_one_prompt_has_held_out_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "tell", "completion": f" {i}"} for i in range(20)]
    task = composed(tmp_path / "rows.jsonl", rows, "algorithm=supervised").task
    assert [len(task.prompts(split)) for split in ("train", "validation", "test")] == [16, 2, 2]


def test_evaluations_ask_prompts_with_all_that_is_around_them(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"q{i}", "context": "ctx", "system": "no", "sys": "S", "chosen": "a", "rejected": "b"}
        for i in range(20)
    ]
    words = ("algorithm=dpo", "data.input=context", "data.system=sys")
    run = composed(tmp_path / "rows.jsonl", rows, *words)
    trained, evaluated = rows_of(run.data, "validation").rows[0].prompt, run.task.prompts("validation")[0]
    assert (evaluated.text, evaluated.messages) == (trained.text, trained.messages)
    assert evaluated.text.startswith("S") and "ctx" in evaluated.text


@pytest.mark.parametrize(
    "word", ["data.num_epochs=2", "data.skip_empty=true", "data.reasoning=thought", "data.good=fine"]
)
def test_supervised_refuses_options_that_it_would_lose(tmp_path: Path, word: str) -> None:
    rows: list[dict[str, object]] = [{"prompt": "a", "response": "b", "thought": "t", "fine": True}] * 20
    with pytest.raises(
        InputError, match=rf"^{word.partition('=')[0]}: algorithm=supervised takes the rows as"
    ):
        composed(tmp_path / "rows.jsonl", rows, "algorithm=supervised", word)
