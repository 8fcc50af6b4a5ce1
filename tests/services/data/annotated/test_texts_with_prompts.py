"""Pairs of texts without a column of their prompt: what they are told to do, as Anthropic's dialogues are."""

import json
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.config.compose import run_settings
from services.data.annotated.responses import ResponseData, read_responses


def refusal(tmp_path: Path, chosen: str, rejected: str) -> str:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"chosen": chosen, "rejected": rejected}) + "\n" for _ in range(30)))
    with pytest.raises(InputError) as refused:
        read_responses(ResponseData(files=str(file)), None, "train")
    return str(refused.value)


def test_texts_that_begin_with_their_prompt_name_the_task_that_reads_dialogues(tmp_path: Path) -> None:
    begin = "\n\nHuman: Two and two?\n\nAssistant:"
    message = refusal(tmp_path, f"{begin} Four.", f"{begin} Five.")
    assert "texts that both begin with their prompt" in message and "task=helpful_harmless" in message


def test_texts_without_a_common_beginning_lack_a_column(tmp_path: Path) -> None:
    assert "there is no column 'prompt'" in refusal(tmp_path, "Four.", "It is five.")


@pytest.mark.parametrize("algorithm", ["dpo", "supervised"])
def test_a_place_that_is_not_there_is_no_place_for_another_algorithm(algorithm: str, tmp_path: Path) -> None:
    words = [f"algorithm={algorithm}", f"data={tmp_path / 'nowhere'}", "model.path=gpt2"]
    with pytest.raises(InputError, match=r"nowhere: (there is no such|there is no annotation)"):
        from services.training.sources.annotated_data import open_source
        from services.training.sources.data_needs import check_data_fits

        settings = run_settings(words)
        check_data_fits(settings)
        open_source(settings, None)
