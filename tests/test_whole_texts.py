"""Half of a surrogate pair in a file of a user's: refused where it is read, with file and line."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings, build
from contracts.whole_texts import expect_whole, lines_of
from reward_servers.graders.tfidf_diversity import inverse_frequencies
from reward_servers.text.reference_file import read_reference_sets
from services import cli
from services.config.settings import RunSettings
from services.data.annotated.responses import ResponseData, read_responses
from services.data.tasks.base import Split
from services.data.tasks.files import from_files
from services.data.tasks.knowledge_dialogue import read_conversations
from services.data.tasks.rows import read_checked
from services.inference.generation.prompt_rows import rows_of_file
from services.inference.grading.sample_files import read_samples
from services.studies.crowdsourcing.texts import read_texts as read_crowd
from services.studies.pairwise.texts import read_pairs
from services.training.reward_training.data import RewardData, read_split
from services.training.sources.prompts import prompts_of

HALF = "a\ud83d b"


def lines(path: Path, row: dict[str, Any], number: int = 3) -> Path:
    """A JSON Lines file whose line `number` has a half in every text."""
    good = json.dumps({key: "x" if isinstance(value, str) else ["x"] for key, value in row.items()})
    path.write_text("\n".join([*[good] * (number - 1), json.dumps(row), good]) + "\n", encoding="utf-8")
    assert "\\ud83d" in path.read_text()
    return path


def refused(read: Callable[[], Any], *messages: str) -> None:
    with pytest.raises(InputError, match=r"half of a surrogate pair, \\ud83d, at character 2") as raised:
        read()
    for message in messages:
        assert message in str(raised.value)


def test_a_tasks_files(tmp_path: Path) -> None:
    file = lines(tmp_path / "train.jsonl", {"prompt": HALF})
    refused(lambda: read_checked(file, ["prompt"]), f"{file}, line 3: the text 'prompt'")
    refused(lambda: from_files(str(file), "train", ["prompt"]), f"{file}, line 3")
    nested = tmp_path / "train.json"
    nested.write_text(json.dumps([{"prompt": "a", "turns": [{"text": HALF}]}]))
    refused(lambda: read_checked(nested, ["prompt"]), f"{nested}, row 1: the text 'turns[0].text'")
    refused(lambda: read_conversations(lines(tmp_path / "talk.jsonl", {"dialog": [HALF]})), "line 3")


def test_behind_the_rows_that_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which `datasets` reads: its message has no file."""
    monkeypatch.setattr("services.data.tasks.files.ROWS_READ_AHEAD", 2)
    file = lines(tmp_path / "train.jsonl", {"prompt": HALF}, number=30)
    refused(lambda: from_files(str(file), "train", ["prompt"]), f"{file}, line 30")


@pytest.mark.parametrize("column", ["prediction", "prompt", "meta"])
def test_what_score_reads(column: str, tmp_path: Path) -> None:
    row = {"prediction": "x", column: {"k": HALF} if column == "meta" else HALF}
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"prediction": "x"}}\n{json.dumps(row)}\n')
    refused(lambda: read_samples(file, None), f"{file}, line 2: the text '{column}")
    good = tmp_path / "good.jsonl"
    good.write_text('{"prediction": "x"}\n')
    references = tmp_path / "r.jsonl"
    references.write_text(json.dumps({"references": ["x", HALF]}) + "\n")
    refused(lambda: read_samples(good, references), f"{references}, line 1: the text 'references[1]'")


def test_what_annotate_and_train_reward_read(tmp_path: Path) -> None:
    responses = lines(tmp_path / "train.jsonl", {"prompt": "x", "response": HALF})
    data = ResponseData(files=str(responses))
    refused(lambda: read_responses(data, None, "train"), f"{responses}, line 3: the text 'response'")
    pairs = lines(tmp_path / "pairs.jsonl", {"chosen": "y", "rejected": HALF})
    refused(lambda: read_split(RewardData(files=str(pairs)), None, None, "train"), f"{pairs}, line 3")


def test_what_judge_and_crowd_read(tmp_path: Path) -> None:
    rows = [{"prompt_text": "x", "generated_text": "y"}, {"prompt_text": "x", "generated_text": HALF}]
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps(rows))
    refused(lambda: read_pairs(str(file), str(file), None), f"{file}, row 2: the text 'generated_text'")
    refused(lambda: read_crowd([f"ppo={file}"]), f"{file}, row 2")


def test_what_rewards_read_besides(tmp_path: Path) -> None:
    references = lines(tmp_path / "references.jsonl", {"references": [HALF]})
    refused(lambda: read_reference_sets(str(references)), f"{references}, line 3")
    corpus = lines(tmp_path / "corpus.jsonl", {"text": HALF})
    refused(lambda: inverse_frequencies(str(corpus), "text"), f"{corpus}, line 3")


def test_prompts_of_a_file_and_of_standard_input(tmp_path: Path) -> None:
    file = lines(tmp_path / "prompts.jsonl", {"prompt": HALF})
    refused(lambda: rows_of_file(file), "--prompts: ", "line 3")
    for errors in ("strict", "surrogateescape"):
        for num_before in (1, 5000):
            content = io.BytesIO(b"some\n" * num_before + b"\xff\nmore\n")
            typed = io.TextIOWrapper(content, encoding="utf-8", errors=errors)
            with pytest.raises(InputError, match=rf"standard input, line {num_before + 1}: is no UTF-8"):
                list(lines_of(typed, "standard input"))


class Halves(Settings):
    """A task of a user's own."""

    where: str = "text"

    def prompts(self, split: Split) -> list[Prompt]:
        whole, half = Prompt("mine/0", "x", references=("x",)), Prompt("mine/1", HALF, references=("x",))
        return [whole, half] if self.where == "text" else [whole, Prompt("mine/1", "x", references=(HALF,))]


@pytest.mark.parametrize("where", ["text", "references"])
def test_a_users_own_task(where: str) -> None:
    task = {"name": "tests.test_whole_texts:Halves", "where": where}
    tree = {"algorithm": "ppo", "task": task, "model": {"path": "x"}, "reward": "length"}
    settings = build(RunSettings, tree, where="")
    refused(lambda: prompts_of(settings.task, settings.task_name, "train"), "prompts('train'): prompt mine/1")


def test_an_rl4lms_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "theirs.yml"
    file.write_text('tokenizer: {model_name: "a\\uD83D"}\n')
    assert cli.main(["import-rl4lms", str(file)]) == 2
    assert f"{file}: the text 'tokenizer.model_name' has half of" in capsys.readouterr().err


def test_whole_pairs_are_letters() -> None:
    expect_whole({"a": ["\U0001f600", json.loads('"\\ud83d\\ude00"')], "b": 3, "c": None}, "here")
    with pytest.raises(InputError, match="here: the text 'a column's name' has half"):
        expect_whole({HALF: 1}, "here")
