"""The tasks whose responses are replies: comments on Reddit, and conversations with knowledge at hand."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from contracts.errors import InputError
from services.data.tasks.base import SPLITS
from services.data.tasks.faithdial import FaithDial
from services.data.tasks.faithdial_wow import FaithDialWow
from services.data.tasks.reddit_comments import RedditComments
from services.data.tasks.response_task import EMPTY
from services.data.tasks.wow import Wow
from tests.services.response_files import check_rows, folder, texts

EOS = "<|endoftext|>"

# Reddit


def comment(parent: Any, text: Any, score: Any = 70) -> dict[str, Any]:
    return {"parent_text": parent, "text": text, "score": score}


def test_comments_are_cleaned(tmp_path: Path) -> None:
    rows = [
        comment("Look  at\nthis: https://a.b/c?d=e, or www.f.g", "  Nice \n one "),
        comment("Short", "word " * 101),
        comment("word " * 100, "!" * 201),
        comment(None, "Nobody asked."),
        comment("Good?", "Bad.", -3),
        comment("Good?", "Who knows.", None),
    ]
    task = RedditComments(data_files=folder(tmp_path, rows))
    (row,) = task.responses("train")
    assert row.prompt.text == f"Look at this: <URL> or <URL>{EOS}"
    assert (row.response, row.scores) == ("Nice one", {"score": 70.0})
    assert row.prompt.meta == {"turns": ["Look at this: <URL> or <URL>"]}
    assert task.left_out("train") == {
        "more than 100 words": 1,
        "more than 300 tokens": 1,  # 100 words and 201 marks
        "no text": 1,
        "not positive": 1,
        "no score": 1,
    }
    negative = RedditComments(data_files=task.data_files, polarity="negative")
    assert [row.response for row in negative.responses("train")] == ["Bad."]
    assert texts(negative.prompts("test")) == texts(task.prompts("test"))  # both polarities'
    check_rows(task)


def kaggle(path: Path) -> str:
    path.mkdir()
    for name, sign in (("positive", 1), ("negative", -1)):
        with (path / f"comments_{name}.csv").open("w", newline="") as file:
            out = csv.DictWriter(file, ["text", "score", "parent_text"])
            out.writeheader()
            for number in range(60):  # two replies to each of 30 comments, the last reply empty
                text = f"reply {number} of {name}" if number < 59 else ""
                parent = f"comment {number // 2} of {name}"
                out.writerow({"text": text, "score": sign * 70, "parent_text": parent})
    return str(path)


def test_kaggles_files_are_drawn_and_divided_with_a_seed(tmp_path: Path) -> None:
    data = kaggle(tmp_path / "kaggle")
    task = RedditComments(data_files=data, num_drawn=50, num_eval=5)
    parts = {split: texts(task.prompts(split)) for split in SPLITS}
    assert not {*parts["test"]} & {*parts["validation"]} and not {*parts["train"]} & {*parts["test"]}
    for split in ("test", "validation"):  # five of each polarity, and other replies to their comments
        assert 10 <= len(parts[split]) <= 20
        assert sum("positive" in text for text in parts[split]) >= 5
    assert all("positive" in text for text in parts["train"])
    dropped = task.left_out("train")
    assert sum(len(part) for part in parts.values()) + sum(dropped.values()) == 100
    assert parts == {split: texts(RedditComments(**task.model_dump()).prompts(split)) for split in SPLITS}
    other = RedditComments(data_files=data, num_drawn=50, num_eval=5, seed=1)
    assert texts(other.prompts("test")) != parts["test"]
    as_published = RedditComments(data_files=data, num_drawn=60, num_eval=20, clean_test=False)
    assert [len(as_published.prompts(split)) for split in SPLITS] == [
        19,
        40,
        40,
    ]  # 59 - 20 - 20 of the positive
    check_rows(task)


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a number in column 'score', got 'many'"):
        RedditComments(data_files=folder(tmp_path, [comment("a", "b", "many")])).prompts("train")


# Conversations with knowledge


def faithful(knowledge: str, history: list[str], response: str) -> dict[str, Any]:
    return {"dialog_idx": 0, "knowledge": knowledge, "history": history, "response": response}


def turn(speaker: str, text: str, *checked: str) -> dict[str, Any]:
    known = {f"key_{number}": sentence for number, sentence in enumerate(checked)}
    return {"speaker": speaker, "text": text, "checked_sentence": known, "retrieved_passages": [{"x": ["y"]}]}


TALK = {
    "chosen_topic": "Jazz",
    "dialog": [
        turn("0_Wizard", "Jazz is old.", "Jazz began about 1900."),  # nothing was said before it
        turn("1_Apprentice", "I love it!"),
        turn("0_Wizard", "So do I."),  # with no sentence checked
        turn("1_Apprentice", "Since when?"),
        turn("0_Wizard", "About 1900.", "Jazz began about 1900.", "Another one."),
        turn("1_Apprentice", "Thanks."),
        turn("0_Wizard", "Bye.", "no_passages_used"),
    ],
}


def test_a_faithful_reply_has_its_knowledge_first(tmp_path: Path) -> None:
    task = FaithDial(data_files=folder(tmp_path, [faithful("K.", ["Hi!", "Yes?", "Who?"], "It is K.")]))
    (row,) = task.responses("test")
    assert row.prompt.id == "faithdial/test/0"
    assert row.prompt.text == f"Knowledge: K.{EOS}Hi!{EOS}Yes?{EOS}Who?{EOS}"
    assert row.prompt.meta == {"knowledge": "K.", "turns": ["Hi!", "Yes?", "Who?"]}
    assert (row.response, row.is_good) == ("It is K.", True)


def test_whole_conversations_of_faithdials_files_are_read(tmp_path: Path) -> None:
    talk = {"dialog_idx": 3, "utterances": [faithful("K.", ["a"], "b"), faithful("L.", ["a", "b", "c"], "d")]}
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.json").write_text(json.dumps([talk]))
    task = FaithDial(data_files=str(tmp_path))
    assert [prompt.id for prompt in task.prompts("validation")] == [
        "faithdial/validation/0/0",
        "faithdial/validation/0/1",
    ]
    check_rows(task)


def test_the_oldest_utterances_go_until_the_history_fits(tmp_path: Path) -> None:
    data = folder(tmp_path, [faithful("K.", ["one two three", "four five", "six"], "seven")])

    # With a mark after each: 4 + 3 + 2 words.
    def turns(room: int) -> Any:
        return FaithDial(data_files=data, max_history_tokens=room).prompts("train")[0].meta["turns"]

    assert turns(9) == ["one two three", "four five", "six"]
    assert turns(8) == turns(5) == ["four five", "six"]
    assert turns(4) == turns(1) == ["six"]


def test_a_wizards_checked_replies_are_asked_with_all_that_was_said(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps([TALK]))
    (tmp_path / "valid_topic_split.json").write_text(json.dumps([TALK, TALK]))
    task = Wow(data_files=str(tmp_path))
    (prompt,) = task.prompts("train")
    assert prompt.id == "wow/train/0/4"
    assert prompt.meta == {
        "knowledge": "Jazz began about 1900.",
        "turns": ["Jazz is old.", "I love it!", "So do I.", "Since when?"],
    }
    assert prompt.references == ("About 1900.",)
    assert len(task.prompts("validation")) == 2
    (as_there,) = Wow(data_files=str(tmp_path), keep_unchecked=False).prompts("train")
    assert as_there.meta["turns"] == ["Jazz is old.", "I love it!", "Since when?"]


def test_the_wizards_test_is_faithdials(tmp_path: Path) -> None:
    (tmp_path / "wow").mkdir()
    (tmp_path / "wow" / "train.json").write_text(json.dumps([TALK] * 10))
    faith = folder(tmp_path / "faith", [faithful("K.", ["Hi!"], "It is K.")])
    task = Wow(data_files=str(tmp_path / "wow"), path=faith, revision=None)
    assert task.prompts("test")[0].references == ("It is K.",)
    with_files = Wow(data_files={"train": str(tmp_path / "wow/train.json"), "test": f"{faith}/test.jsonl"})
    assert texts(with_files.prompts("test")) == texts(task.prompts("test"))
    assert len(task.prompts("train")) + len(task.prompts("validation")) == 9  # the tenth row is the test's


def test_both_together_keep_their_prompts_apart(tmp_path: Path) -> None:
    for name in ("train", "valid_topic_split"):
        (tmp_path / f"{name}.json").write_text(json.dumps([TALK] * 3))
    rows = [faithful(f"K{number}.", ["Hi!"], "It is K.") for number in range(4)]
    task = FaithDialWow(data_files=folder(tmp_path / "faith", rows), wow_files=str(tmp_path))
    for split, expected in (("train", 7), ("validation", 7), ("test", 4)):
        prompts = task.prompts(split)  # type: ignore[arg-type]
        assert len(prompts) == len({prompt.id for prompt in prompts}) == expected
    assert task.prompts("train") == task.prompts("train")
    assert texts(task.prompts("train")) != sorted(texts(task.prompts("train")))
    check_rows(task)
    with pytest.raises(InputError, match=r"task\.wow_files=FOLDER"):
        FaithDialWow(data_files=str(tmp_path / "faith")).prompts("train")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"dialog": ["Hi!"]}, "expected a list of turns in column 'dialog'"),
        ({"dialog": [{"text": "Hi!"}]}, "turn 0: there is no column 'speaker'"),
        ({"knowledge": "K."}, "there is no column 'history'"),
        ({"utterances": [3]}, "expected a list of objects in column 'utterances'"),
    ],
)
def test_rows_that_are_no_conversations_are_refused(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Wow(data_files=folder(tmp_path, [row])).prompts("train")


def test_what_a_reply_lacks_is_counted(tmp_path: Path) -> None:
    rows = [
        faithful("", ["Hi!"], "a"),
        faithful("K.", [], "a"),
        faithful("K.", ["Hi!"], " "),
        faithful("K.", ["a"], "b"),
    ]
    task = FaithDial(data_files=folder(tmp_path, rows))
    assert task.left_out("train") == {"no knowledge": 1, "nothing was said before the reply": 1, EMPTY: 1}


def test_a_tokenizer_counts_if_one_is_given(tmp_path: Path) -> None:
    data = folder(tmp_path, [faithful("K.", ["one two three", "four"], "five")])
    letters = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    letters.pre_tokenizer = Split("", "isolated")
    letters.save(str(tmp_path / "tokenizer.json"))

    # 13 letters and 4, with a mark after each: 19.
    def turns(room: int) -> Any:
        task = FaithDial(data_files=data, max_history_tokens=room, tokenizer=str(tmp_path))
        return task.prompts("train")[0].meta["turns"]

    assert turns(19) == ["one two three", "four"]
    assert turns(18) == ["four"]


def test_a_tokenizer_that_does_not_load_is_refused(tmp_path: Path) -> None:
    data = folder(tmp_path, [faithful("K.", ["Hi!"], "a")])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"task\.tokenizer=.* can't be loaded: .*Give a folder"):
        FaithDial(data_files=data, tokenizer=str(tmp_path)).prompts("train")
