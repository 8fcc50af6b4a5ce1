"""The tasks of plain text: prompts, references, meta data by hand, from files with the data sets' columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import SPLITS, Split
from services.data.tasks.cnn_daily_mail import CnnDailyMail, first_words
from services.data.tasks.commongen import CommonGen
from services.data.tasks.dummy import Dummy
from services.data.tasks.imdb_seq2seq import ImdbSeq2Seq
from services.data.tasks.iwslt2017_en_de import Iwslt2017EnDe
from services.data.tasks.narrative_qa import NarrativeQa
from services.data.tasks.wmt14_en_de import Wmt14EnDe
from services.data.tasks.wmt16 import Wmt16
from services.data.tasks.wmt16_newsonly import Wmt16NewsOnly
from services.data.tasks.xsum import Xsum

REAL_SAMPLES = Path(__file__).parents[5] / "shared" / "data"  # a folder of real samples beside the repository
SAME: tuple[Split, Split] = ("train", "validation")


def folder(path: Path, **rows: list[Any]) -> str:
    """A folder with a file for each split; train and validation are the same where only one is given."""
    path.mkdir(exist_ok=True)
    for split in SPLITS:
        lines = rows.get(split, rows.get("train", []))
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return str(path)


def asked(prompts: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(prompt.text, prompt.references) for prompt in prompts]


def test_dummy_asks_the_same_in_every_split() -> None:
    task = Dummy(prompt="<|endoftext|>", n_samples=2)
    assert task.prompts("test") == [
        Prompt("dummy/test/0", "<|endoftext|>"),
        Prompt("dummy/test/1", "<|endoftext|>"),
    ]


# IMDB


REVIEWS = [
    {"text": "a b c d e", "label": 1},
    {"text": "bad bad", "label": 0},
    {"text": "f g h i", "label": 1},
    {"text": "j k", "label": 1},
]


def test_imdb_seq2seq_trains_on_positive_second_halves(tmp_path: Path) -> None:
    task = ImdbSeq2Seq(data_files=folder(tmp_path / "d", train=REVIEWS))
    # int(5 / 2) = 2 words are the prompt, the other 3 the reference.
    assert task.prompts("train") == [
        Prompt("imdb_seq2seq/train/0", "a b", ("c d e",), {"reference": "a b c d e"}),
        Prompt("imdb_seq2seq/train/2", "f g", ("h i",), {"reference": "f g h i"}),
        Prompt("imdb_seq2seq/train/3", "j", ("k",), {"reference": "j k"}),
    ]


def test_imdb_seq2seq_evaluates_on_both_kinds(tmp_path: Path) -> None:
    task = ImdbSeq2Seq(data_files=folder(tmp_path / "d", train=REVIEWS), positive_ratio=0.5)
    assert asked(task.prompts("train")) == [("a b", ("c d e",))]  # int(3 * 0.5) = 1
    assert asked(task.prompts("test"))[1] == ("bad", ("bad",))
    assert len(task.prompts("test")) == 4


def test_imdb_seq2seq_wants_a_label_that_is_one(tmp_path: Path) -> None:
    task = ImdbSeq2Seq(data_files=folder(tmp_path / "d", train=[{"text": "a b", "label": 2}]))
    with pytest.raises(InputError, match=r"train\.jsonl, line 1: expected 0 \(negative\) or 1 .* got 2"):
        task.prompts("train")


def test_imdb_seq2seq_from_a_data_set_with_two_parts_divides_them_as_imdb_does(tmp_path: Path) -> None:
    rows = [{"text": f"w{i} x", "label": i % 2} for i in range(20)]
    for part, count in (("train", 20), ("test", 6)):
        lines = "".join(json.dumps(row) + "\n" for row in rows[:count])
        (tmp_path / f"{part}.jsonl").write_text(lines)
    train, validation, test = (ImdbSeq2Seq(path=str(tmp_path)).prompts(split) for split in SPLITS)
    assert (len(validation), len(test)) == (4, 6)  # 20 % of 20, both kinds
    positive = {f"w{i}" for i in range(1, 20, 2)}
    assert {prompt.text for prompt in train} == positive - {prompt.text for prompt in validation}


# CommonGen


SETS = [
    {"concept_set_idx": 0, "concepts": ["ski", "mountain"], "target": "One skis."},
    {"concept_set_idx": 0, "concepts": ["ski", "mountain"], "target": "A mountain to ski."},
    {"concept_set_idx": 1, "concepts": ["dog", "run"], "target": "Dogs run."},
]
SKI, DOG = "generate a sentence with: ski mountain.", "generate a sentence with: dog run."


def test_commongen_trains_on_a_sentence_a_row(tmp_path: Path) -> None:
    task = CommonGen(data_files=folder(tmp_path / "d", train=SETS))
    assert task.prompts("train") == [
        Prompt("commongen/train/0", SKI, ("One skis.",), {"concepts": ["ski", "mountain"]}),
        Prompt("commongen/train/1", SKI, ("A mountain to ski.",), {"concepts": ["ski", "mountain"]}),
        Prompt("commongen/train/2", DOG, ("Dogs run.",), {"concepts": ["dog", "run"]}),
    ]


@pytest.mark.parametrize(("split", "options"), [("validation", {}), ("train", {"group_train": True})])
@pytest.mark.parametrize("streaming", [False, True])
def test_commongen_puts_the_sentences_of_a_set_together(
    tmp_path: Path, split: Split, options: dict[str, Any], streaming: bool
) -> None:
    task = CommonGen(data_files=folder(tmp_path / "d", train=SETS), streaming=streaming, **options)
    assert list(task.prompts(split)) == [
        Prompt(
            f"commongen/{split}/0",
            SKI,
            ("One skis.", "A mountain to ski."),
            {"concepts": ["ski", "mountain"]},
        ),
        Prompt(f"commongen/{split}/2", DOG, ("Dogs run.",), {"concepts": ["dog", "run"]}),
    ]


@pytest.mark.parametrize("split", SPLITS)
def test_commongen_with_targets_alone_is_a_sentence_a_row_in_every_split(
    tmp_path: Path, split: Split
) -> None:
    rows = [{**row, "references": ["Another.", "And another."]} for row in SETS]
    task = CommonGen(data_files=folder(tmp_path / "d", train=rows), references="target")
    assert asked(task.prompts(split)) == [
        (SKI, ("One skis.",)),
        (SKI, ("A mountain to ski.",)),
        (DOG, ("Dogs run.",)),
    ]


def test_rows_of_one_set_of_concepts_are_dealt_to_one_split(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    sets = [[f"w{number}"] for number in range(10) for _ in range(3)]  # so 10 sets are dealt, not 30 rows
    file.write_text("".join(json.dumps({"concepts": concepts, "target": "x"}) + "\n" for concepts in sets))
    task = CommonGen(data_files=str(file))
    by_split = {split: {prompt.text for prompt in task.prompts(split)} for split in SPLITS}
    assert [len(by_split[split]) for split in SPLITS] == [8, 1, 1]
    assert len(set.union(*by_split.values())) == 10
    assert {prompt.text for prompt in task.first_prompts("test")} == by_split["test"]


def test_commongen_takes_gems_references_and_says_where_there_are_none(tmp_path: Path) -> None:
    rows = [
        {"concepts": ["a"], "target": "x", "references": ["x", "y"]},
        {"concepts": ["b"], "target": "z", "references": []},  # GEM's train
        {"concepts": ["c"], "target": "", "references": []},  # a hidden test
    ]
    task = CommonGen(
        data_files=folder(tmp_path / "d", train=rows),
        prefix="summarize: ",
        concept_separator_token=" ",
        concept_end_token="",
    )
    assert asked(task.prompts("test")) == [
        ("summarize: a", ("x", "y")),
        ("summarize: b", ("z",)),
        ("summarize: c", ("empty reference",)),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"concepts": 5, "target": "x"}, "line 1: expected a text or a list of texts in column 'concepts'"),
        ({"concepts": [], "target": "x"}, "line 1: expected at least one word in column 'concepts'"),
        ({"concepts": ["a"]}, "line 1: there is no column 'target'; there are: concepts"),
        ({"concept": ["a"], "target": "x"}, "line 1: there is no column 'concepts'; did you mean 'concept'?"),
        ({"concepts": ["a"], "target": 3}, "line 1: expected a text or a list of texts in column 'target'"),
    ],
)
def test_commongen_names_what_is_wrong_to_the_line(tmp_path: Path, row: Any, message: str) -> None:
    task = CommonGen(data_files=folder(tmp_path / "d", train=[row]))
    for ask in (task.prompts, task.first_prompts):
        with pytest.raises(InputError) as caught:
            ask("train")
        assert message in str(caught.value)


@pytest.mark.skipif(not REAL_SAMPLES.exists(), reason="the real samples are not here")
def test_commongen_on_real_rows() -> None:
    task = CommonGen(data_files=str(REAL_SAMPLES / "common_gen"))
    train, validation, test = (task.prompts(split) for split in SPLITS)
    assert (len(train), len(validation), len(test)) == (400, 100, 100)
    assert train[0] == Prompt(
        "commongen/train/0",
        "generate a sentence with: ski mountain skier.",
        ("Skier skis down the mountain",),
        {"concepts": ["ski", "mountain", "skier"]},
    )
    assert len(validation[0].references) == 4
    grouped = CommonGen(data_files=str(REAL_SAMPLES / "common_gen"), group_train=True).prompts("train")
    assert len(grouped) == 137 and sum(len(prompt.references) for prompt in grouped) == 400


# Summaries


def test_cnn_daily_mail_and_xsum(tmp_path: Path) -> None:
    news = [{"article": "Much  has happened. More will.", "highlights": "Much .\nMore .", "id": "1"}]
    data = folder(tmp_path / "cnn", train=news)
    (prompt,) = CnnDailyMail(data_files=data).prompts("train")
    assert prompt == Prompt(
        "cnn_daily_mail/train/0", "Summarize: Much  has happened. More will.", ("Much .\nMore .",)
    )
    cut = CnnDailyMail(data_files=data, prompt_prefix="", prompt_suffix=" TL;DR:", truncate_article=4)
    assert cut.prompts("train")[0].text == "Much  has happened. TL;DR:"  # three words and a full stop

    for column in ("summary", "target"):
        rows = [{"document": "Long story.", column: "Short."}]
        (prompt,) = Xsum(data_files=folder(tmp_path / column, train=rows)).prompts("test")
        assert prompt == Prompt("xsum/test/0", "Long story.TL;DR:", ("Short.",))


def test_a_cut_leaves_the_text_as_it_is() -> None:
    assert first_words("a, b", None) == first_words("a, b", 9) == first_words("a, b", 3) == "a, b"
    assert first_words("it's well-made: 3.5 stars", 3) == "it's well-made:"


def test_articles_without_a_summary_are_refused_or_left_out(tmp_path: Path) -> None:
    rows = [{"article": "a", "highlights": " "}, {"article": "b", "highlights": "c"}]
    data = folder(tmp_path / "d", train=rows)
    with pytest.raises(InputError, match=r"line 1: the reference 1 is empty; task\.skip_empty=true leaves"):
        CnnDailyMail(data_files=data).prompts("train")
    for streaming in (False, True):
        left = CnnDailyMail(data_files=data, skip_empty=True, streaming=streaming).prompts("train")
        assert [prompt.id for prompt in left] == ["cnn_daily_mail/train/1"]


# NarrativeQA


def test_narrative_qa_from_unifiedqas_files(tmp_path: Path) -> None:
    question = 'Who is "Mark"? \\n The Story.'
    lines = f"{question}\t A Boy \nWhy? \\n S.\tSo\n{question}\tMark's a lad\n"
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text(lines)
    task = NarrativeQa(data_files=str(tmp_path))
    for split in SPLITS:
        assert task.prompts(split) == [
            Prompt(f"narrative_qa/{split}/0", 'who is "mark"? \\n the story.', ("a boy", "mark's a lad")),
            Prompt(f"narrative_qa/{split}/1", "why? \\n s.", ("so",)),
        ]
        assert task.first_prompts(split) == task.prompts(split)
    mapped = NarrativeQa(data_files={"train": str(tmp_path / "dev.tsv")})
    assert asked(mapped.prompts("train")) == asked(task.prompts("validation"))
    with pytest.raises(InputError, match=r"there is none for test: task\.data_files=\{train: …, test: …\}"):
        mapped.prompts("test")


def test_narrative_qa_from_the_hubs_columns(tmp_path: Path) -> None:
    import pandas

    row = {
        "document": {"id": "x", "summary": {"text": "The Story.", "url": "u"}, "text": "A whole book."},
        "question": {"text": "Who is Mark?", "tokens": ["Who"]},
        "answers": [{"text": "A Boy", "tokens": ["A"]}, {"text": "Mark ", "tokens": []}],
    }
    expected = [("who is mark? \\n the story.", ("a boy", "mark"))]
    json_lines = NarrativeQa(data_files=folder(tmp_path / "lines", train=[row]))
    pandas.DataFrame([row]).to_parquet(tmp_path / "train.parquet")
    parquet = NarrativeQa(data_files={split: str(tmp_path / "train.parquet") for split in SPLITS})
    for task in (json_lines, parquet):
        assert asked(task.prompts("test")) == expected
    assert asked(json_lines.first_prompts("test")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n", "line 2: expected a prompt, a tab and an answer, got 1 columns: c"),
        ("a\tb\tc\n", "line 1: expected a prompt, a tab and an answer, got 3 columns"),
        ("\n", "holds no rows"),
    ],
)
def test_narrative_qa_refuses_other_files(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(InputError) as caught:
        NarrativeQa(data_files=str(tmp_path)).first_prompts("train")
    assert message in str(caught.value) and "train.tsv" in str(caught.value)


def test_narrative_qa_names_a_missing_column(tmp_path: Path) -> None:
    rows = [{"question": {"text": "Why?"}, "answers": ["so"]}]
    with pytest.raises(InputError, match=r"line 1: there is no column 'document\.summary\.text'"):
        NarrativeQa(data_files=folder(tmp_path / "d", train=rows)).prompts("train")


# Translation


@pytest.mark.parametrize("task", [Wmt16, Wmt14EnDe, Wmt16NewsOnly, Iwslt2017EnDe])
@pytest.mark.parametrize("nested", [True, False])
def test_translations_take_either_form_of_row(tmp_path: Path, task: Any, nested: bool) -> None:
    pair = {"de": "Hallo Welt", "en": "Hello world"}
    data = folder(tmp_path / "d", train=[{"translation": pair} if nested else pair])
    made = task(data_files=data, prompt_prefix="translate: ", prompt_suffix=" =")
    name = task.task_name
    assert made.prompts("test") == [Prompt(f"{name}/test/0", "translate: Hello world =", ("Hallo Welt",))]
    back = task(data_files=data, prompt_prefix="", source_language="de", target_language="en")
    assert asked(back.prompts("train")) == [("Hallo Welt", ("Hello world",))]


def test_iwslt_asks_as_t5_was_taught(tmp_path: Path) -> None:
    task = Iwslt2017EnDe(data_files=folder(tmp_path / "d", train=[{"en": "Hi", "de": "Na"}]))
    assert asked(task.prompts("train")) == [("translate English to German: Hi", ("Na",))]


def test_a_missing_language_is_named(tmp_path: Path) -> None:
    task = Wmt16(data_files=folder(tmp_path / "d", train=[{"translation": {"en": "a", "cs": "b"}}]))
    with pytest.raises(InputError, match=r"line 1: there is no column 'de'"):
        task.prompts("train")


def test_wmt16_finds_the_pair_in_either_order(tmp_path: Path) -> None:
    """A data set of two language pairs, laid out as the hub's are."""
    for pair in ("de-en", "en-fr"):
        (tmp_path / pair).mkdir()
        first, second = pair.split("-")
        rows = [{"translation": {first: f"{first}{i}", second: f"{second}{i}"}} for i in range(10)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / pair / "train.jsonl").write_text(lines)
    configs = "".join(
        f"- config_name: {pair}\n  data_files:\n  - split: train\n    path: {pair}/train.jsonl\n"
        for pair in ("de-en", "en-fr")
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    german = Wmt16(path=str(tmp_path))
    assert asked(german.prompts("train"))[0] == ("en0", ("de0",))
    french = Wmt16(path=str(tmp_path), target_language="fr")
    assert asked(french.prompts("train"))[1] == ("en1", ("fr1",))
    with pytest.raises(InputError, match=r"can't be loaded"):
        Wmt16(path=str(tmp_path), target_language="cs").prompts("train")


def test_newsonly_trains_on_all_of_one_data_set_and_is_tested_on_another(tmp_path: Path) -> None:
    for name, splits in (("commentary", ["train"]), ("news", ["train", "validation", "test"])):
        (tmp_path / name).mkdir()
        for split in splits:
            rows = [{"translation": {"en": f"{name} {split} {i}", "de": "x"}} for i in range(10)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name / f"{split}.jsonl").write_text(lines)
    task = Wmt16NewsOnly(
        path=str(tmp_path / "commentary"), evaluation_path=str(tmp_path / "news"), subset=None
    )
    assert [prompt.text for prompt in task.prompts("train")] == [f"commentary train {i}" for i in range(10)]
    assert task.prompts("validation")[9].text == "news validation 9"
    assert task.prompts("test")[0].text == "news test 0"
