"""The tasks whose data brings responses: what they share, pairs, and triples."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.rollout import Prompt
from reward_servers.part_checks import check_parts
from reward_servers.settings import parts
from reward_servers.text.person_names import names_for, with_names
from services.data.tasks.atomic import Atomic
from services.data.tasks.base import SPLITS
from services.data.tasks.helpful_harmless import SEGMENTS, HelpfulHarmless, conversation
from services.data.tasks.imdb import Imdb
from services.data.tasks.reddit_comments import RedditComments
from services.data.tasks.response_task import EMPTY, ResponseTask
from services.data.tasks.responses import responses_of
from tests.services.response_files import check_rows, folder, texts, write

REAL_SAMPLES = Path(__file__).parents[5] / "shared" / "data"  # a folder of real samples beside the repository


# Any task


def test_a_tasks_references_are_good_responses(tmp_path: Path) -> None:
    task = Imdb(data_files=folder(tmp_path, [{"text": "a b c d"}]))
    (row,) = responses_of(task, "train")
    # The reference is the whole review; the response continues after its first half.
    assert (row.response, row.group, row.is_good, row.order) == (" c d", 0, True, 0)


# Helpful-Harmless


def pair(question: str, good: str, bad: str) -> dict[str, str]:
    prompt = f"\n\nHuman: {question}\n\nAssistant: Tell me more.\n\nHuman: Well?\n\nAssistant:"
    return {"chosen": f"{prompt} {good}", "rejected": f"{prompt} {bad}"}


def test_a_pair_is_a_good_and_a_bad_response_to_one_prompt(tmp_path: Path) -> None:
    task = HelpfulHarmless(
        data_files=folder(tmp_path, [pair("Is it far?", "A mile.", "No.")]), system="Be kind."
    )
    good, bad = task.responses("train")
    text = "Be kind.\n### Human: Is it far? ### Assistant: Tell me more. ### Human: Well? ### Assistant:"
    assert good.prompt == Prompt(
        "helpful_harmless/train/0", text, ("A mile.",), {"turns": ["Is it far?", "Tell me more.", "Well?"]}
    )
    assert (good.response, good.group, good.is_good, good.order) == ("A mile.", 0, True, 0)
    assert (bad.response, bad.group, bad.is_good, bad.order) == ("No.", 0, False, 1)
    assert bad.prompt == good.prompt


SAID = st.text("aB: \n#Human", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(st.lists(SAID, min_size=1, max_size=5), SAID, SAID)
@settings(max_examples=50, deadline=None)
def test_a_conversation_is_read_as_it_was_written(lines: list[str], good: str, bad: str) -> None:
    lines = lines if len(lines) % 2 else lines[1:]  # the person begins, and has the last word
    turns = [(("Human", "Assistant")[number % 2], text) for number, text in enumerate(lines)]
    transcript = "".join(f"\n\n{speaker}: {text}" for speaker, text in turns)
    fields = {"chosen": f"{transcript}\n\nAssistant: {good}", "rejected": f"{transcript}\n\nAssistant: {bad}"}
    assert conversation(fields, "here") == (turns, [good, bad], "")


def test_a_blank_before_the_response_and_no_system_prompt_are_options(tmp_path: Path) -> None:
    data = folder(tmp_path, [pair("Is it far?", "A mile.", "No.")])
    good, bad = HelpfulHarmless(data_files=data, system="", response_prefix=" ").responses("train")
    assert good.prompt.text.startswith("### Human: Is it far?")
    assert (good.response, bad.response, good.prompt.references) == (" A mile.", " No.", (" A mile.",))


def test_pairs_that_teach_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    other = pair("Who?", "Me.", "You.")
    rows = [
        pair("Is it far?", "A mile.", "No."),
        pair("Is it near?", "A list:", "No."),
        pair("Same?", "Yes.", "Yes."),
        {"chosen": pair("What?", "This.", "That.")["chosen"], "rejected": other["rejected"]},
        {"chosen": other["chosen"] + "\n\nHuman: Bye!", "rejected": other["chosen"] + "\n\nHuman: Hey!"},
        pair("Empty?", "Yes.", ""),
        {"chosen": "\n\nAssistant: Hello.", "rejected": "\n\nAssistant: Go away."},
    ]
    task = HelpfulHarmless(data_files=folder(tmp_path, rows))
    assert [row.response for row in task.responses("train")] == ["A mile.", "No."]
    assert task.left_out("train") == {
        "a reply ends in a colon": 1,
        "the replies are the same": 1,
        "the conversations differ before the last reply": 1,
        "the last word is not the assistant's": 1,
        EMPTY: 1,
        "nothing was said before the reply": 1,
    }
    assert len(HelpfulHarmless(data_files=task.data_files, skip_colons=False).prompts("train")) == 2
    assert len(task.prompts("validation")) == 2  # only training pairs are cleaned of colons


def test_validation_prompts_are_not_in_the_test_unless_the_source_is_followed(tmp_path: Path) -> None:
    train = [pair(f"{number}?", "A.", "B.") for number in range(3)]
    held_out = [pair("Once?", "A.", "B."), pair("Twice?", "A.", "B.")]
    data = folder(tmp_path, train, validation=held_out[1:], test=held_out)
    task = HelpfulHarmless(data_files=data)
    assert [prompt.meta["turns"][0] for prompt in task.prompts("test")] == ["Once?"]
    assert task.left_out("test") == {"the prompt is in the validation": 1}
    assert len(HelpfulHarmless(data_files=data, clean_test=False).prompts("test")) == 2
    check_rows(task)


def test_rows_of_pro_bring_their_rewards_to_the_right_responses(tmp_path: Path) -> None:
    turns = ["<|prompter|>Is it far?", "<|assistant|>A mile.", "<|prompter|>And then? ", "<|assistant|>"]
    row = {
        "prefix": [turns, turns],
        "suffix": ["Turn left.", "No idea."],
        "reward": [1.5, -0.5],
        "sft_index": 0,
    }
    good, bad = HelpfulHarmless(data_files=folder(tmp_path, [row]), clean_test=False).responses("test")
    assert good.prompt.text.endswith(
        "\n### Human: Is it far? ### Assistant: A mile. ### Human: And then? ### Assistant:"
    )
    assert (good.response, good.is_good, good.scores) == ("Turn left.", True, {"reward": 1.5})
    assert (bad.response, bad.is_good, bad.scores) == ("No idea.", False, {"reward": -0.5})


def hub_of(path: Path, num_test: int) -> str:
    for segment, directory in SEGMENTS.items():
        write(path / directory / "train.jsonl", [pair(f"{segment} train", "A.", "B.")])
        rows = [pair(f"{segment} {number}", "A.", "B.") for number in range(num_test)]
        write(path / directory / "test.jsonl", rows)
    return str(path)


def test_the_hubs_validation_is_a_part_of_its_test_whichever_segments_are_asked_for(tmp_path: Path) -> None:
    path = hub_of(tmp_path, num_test=40)
    task = HelpfulHarmless(path=path, validation_share=0.25)
    validation, test = (texts(task.prompts(split)) for split in ("validation", "test"))
    assert not {*validation} & {*test} and len(validation) + len(test) == 4 * 40
    assert 20 <= len(validation) <= 60  # 40 ± 3.7 standard deviations of sqrt(160 · 1/4 · 3/4) = 5.5
    one = HelpfulHarmless(path=path, validation_share=0.25, segments=("helpful_online",))
    assert texts(one.prompts("validation")) == [text for text in validation if "helpful_online" in text]
    assert {prompt.meta["segment"] for prompt in one.prompts("test")} == {"helpful_online"}
    assert len(task.prompts("train")) == 4 and len(one.prompts("train")) == 1
    whole = HelpfulHarmless(path=path, validation_share=0.25, clean_test=False).prompts("test")
    assert len(whole) == 160 and {*validation} < {*texts(whole)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "Hi!", "rejected": "Ho!"}, r"line 1: expected '\\n\\nHuman: …"),
        ({"chosen": pair("a", "b", "c")["chosen"]}, "there is no column 'rejected'"),
        ({"prefix": 3, "suffix": ["a", "b"]}, "expected lists of turns in column 'prefix'"),
        (
            {"prefix": ["<|prompter|>a"], "suffix": ["a", "b"], "reward": [1.0]},
            "expected 2 numbers in column",
        ),
    ],
)
def test_rows_that_are_no_pairs_are_refused(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HelpfulHarmless(data_files=folder(tmp_path, [row])).first_prompts("train")


def test_a_segment_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="no segment 'helpful'; there are: harmless_base"):
        HelpfulHarmless(segments=("helpful",)).prompts("train")


# ATOMIC


def triple(head: str, relation: str, tail: str, **more: Any) -> dict[str, Any]:
    return {"head": head, "relation": relation, "tail": tail, **more}


def test_all_tails_of_an_event_and_a_relation_answer_one_prompt(tmp_path: Path) -> None:
    rows = [
        triple("PersonX runs", "xWant", "to rest", p_valid_model=0.9),
        triple("PersonX runs", "xReact", "tired", p_valid_model=0.8),
        triple("PersonX runs", "xWant", "to win", p_valid_model=0.2),
        triple("PersonX runs", "isAfter", "PersonX walks", p_valid_model=0.1),
    ]
    task = Atomic(data_files=folder(tmp_path, rows))
    wants, reacts = task.prompts("train")
    assert wants.text == "<head> PersonX runs </head> <relation> xWant </relation> [GEN] "
    assert (wants.references, reacts.references) == (("to rest", "to win"), ("tired",))
    responses = [
        (row.response, row.group, row.order, row.scores["p_valid_model"]) for row in task.responses("train")
    ]
    assert responses == [("to rest", 0, 0, 0.9), ("to win", 0, 1, 0.2), ("tired", 1, 0, 0.8)]
    assert task.left_out("train") == {"of another relation": 1}
    assert len(Atomic(data_files=task.data_files, relations=()).prompts("train")) == 3
    check_rows(task)


def test_one_file_serves_the_splits_that_its_column_names(tmp_path: Path) -> None:
    rows = [
        triple(f"{split} {n}", "xWant", "to rest", split=split)
        for n in range(2)
        for split in ("train", "val")
    ]
    file = write(tmp_path / "all.jsonl", rows)
    tsv = tmp_path / "test.tsv"
    tsv.write_text("head\trelation\ttail\nPersonX sits\txAttr\tcalm\nPersonX sits\txAttr\tlazy\n")
    task = Atomic(data_files={"train": file, "validation": file, "test": str(tsv)})
    assert [prompt.meta["head"] for prompt in task.prompts("train")] == ["train 0", "train 1"]
    assert [prompt.meta["head"] for prompt in task.prompts("validation")] == ["val 0", "val 1"]
    assert task.prompts("test")[0].references == ("calm", "lazy")
    with pytest.raises(InputError, match=r"no row belongs to test; column 'split' has \['train', 'val'\]"):
        Atomic(data_files=file).prompts("test")


def test_atomic_2020s_folder_is_read_as_it_is(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"PersonX is in {name}\txNeed\tto go\n")
    task = Atomic(data_files=str(tmp_path))
    assert [task.prompts(split)[0].meta["head"] for split in SPLITS] == [
        "PersonX is in train", "PersonX is in dev", "PersonX is in test",
    ]  # fmt: skip
    (tmp_path / "dev.tsv").write_text("PersonX runs\txNeed\n")
    with pytest.raises(InputError, match=r"dev\.tsv, line 1: expected head, relation and tail"):
        task.prompts("validation")


def test_names_depend_on_the_event_and_the_seed_alone(tmp_path: Path) -> None:
    names = names_for("PersonX pays PersonY", seed=3)
    assert names == names_for("PersonX pays PersonY", seed=3) and len(set(names.values())) == 3
    assert any(names_for(f"{n}", 0) != names_for(f"{n}", 1) for n in range(5))
    assert (
        with_names("PersonX's PersonXs PersonW person x", {"PersonX": "Mei"}) == "Mei's PersonXs PersonW Mei"
    )
    rows = [triple("PersonX pays PersonY", "xWant", "PersonY to thank PersonX")]
    data = folder(tmp_path, rows)
    (plain,) = Atomic(data_files=data, name_seed=3).prompts("train")
    assert plain.meta["names"] == names and "PersonX" in plain.text
    assert plain.meta["named_head"] == f"{names['PersonX']} pays {names['PersonY']}"
    (named,) = Atomic(data_files=data, name_seed=3, substitute_names=True).prompts("train")
    assert named.references == (f"{names['PersonY']} to thank {names['PersonX']}",)
    assert named.text.startswith(f"<head> {names['PersonX']} pays {names['PersonY']} </head>")


def test_a_task_without_a_hub_asks_for_files() -> None:
    for task in (Atomic(), RedditComments()):
        with pytest.raises(InputError, match=r"reads your files \(.*\): task\.data_files="):
            task.prompts("train")


# The documentation


def test_the_published_rewards_that_are_told_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "responses.jsonl", [{"text": "a reply"}])
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[4] / "docs/from-lolrl.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)]
    assert [len(block) for block in blocks] == [5, 1, 1, 1]
    for block in blocks:
        check_parts("reward", parts(block, "reward"))


# The real samples


@pytest.mark.skipif(not REAL_SAMPLES.exists(), reason="the real samples are not here")
@pytest.mark.parametrize(
    ("kind", "name", "share"),
    [(HelpfulHarmless, "hh_rlhf", 0.95), (Atomic, "atomic", 0.15), (RedditComments, "reddit", 0.7)],
)
def test_real_rows(kind: type[ResponseTask], name: str, share: float) -> None:
    task = kind(data_files=str(REAL_SAMPLES / name))
    check_rows(task)
    assert len(task.prompts("train")) >= share * 400
