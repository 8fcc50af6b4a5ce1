"""`whetstone score` on files, good and bad."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.commands.score import run
from services.inference.grading.sample_files import read_samples

GRADERS = "tests.reward_servers.graders"


@pytest.fixture
def predictions(tmp_path: Path) -> str:
    return write(tmp_path / "predictions.jsonl", {"prediction": "the cat sat"}, {"prediction": "a"})


@pytest.fixture
def references(tmp_path: Path) -> str:
    return write(
        tmp_path / "references.jsonl", {"references": ["the cat lay down"]}, {"references": ["b", "a"]}
    )


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def scored(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert run([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_metric_prints_every_key(
    capsys: pytest.CaptureFixture[str], predictions: str, references: str
) -> None:
    values = scored(capsys, "rouge", "--predictions", predictions, "--references", references)
    assert list(values) == [f"lexical/rouge_rouge{kind}" for kind in ("1", "2", "L", "Lsum")]
    # F1 of 2 of 3 and 2 of 4 words is 4/7; the second is its best reference
    assert values["lexical/rouge_rouge1"] == {
        "corpus": pytest.approx((4 / 7 + 1) / 2),
        "rows": [pytest.approx(4 / 7), 1.0],
    }


def test_options_reach_the_metric(
    capsys: pytest.CaptureFixture[str], predictions: str, references: str, tmp_path: Path
) -> None:
    first = scored(
        capsys,
        "rouge",
        "--predictions",
        predictions,
        "--references",
        references,
        "--option",
        "references=first",
    )
    assert first["lexical/rouge_rouge1"]["rows"][1] == 0.0
    numbers = write(tmp_path / "numbers.jsonl", {"prediction": "1 2 3 x"})
    values = scored(capsys, "increasing_numbers", "--predictions", numbers, "--option", "min_tokens=4")
    assert values == {"synthetic/increasing_numbers_in_text": {"corpus": 0.75, "rows": [0.75]}}


def test_classes_of_ones_own_are_rewards_or_metrics(
    capsys: pytest.CaptureFixture[str], predictions: str
) -> None:
    reward = scored(capsys, f"{GRADERS}:Words", "--predictions", predictions, "--option", "factor=2.0")
    assert reward == {"Words": {"corpus": 4.0, "rows": [6.0, 2.0]}}
    metric = scored(capsys, f"{GRADERS}:Vowels", "--predictions", predictions)
    assert metric == {"mine/vowels": {"corpus": 4.0, "rows": [3.0, 1.0]}}


def test_texts_of_one_prompt_share_a_group_that_the_file_may_name(tmp_path: Path) -> None:
    rows = [
        {"prediction": "a", "prompt": "p"},
        {"prediction": "b", "prompt": "q", "group": "mine"},
        {"prediction": "c", "prompt": "p"},
        {"prediction": "d", "group": 7},
        {"prediction": "e"},
        {"prediction": "f"},
    ]
    samples = read_samples(Path(write(tmp_path / "p.jsonl", *rows)), None)
    assert [sample.group for sample in samples] == ["line 1", "mine", "line 1", "7", "line 5", "line 6"]
    with pytest.raises(InputError, match=r"sample 1: group is 1\.5; expected a text or a whole number"):
        read_samples(Path(write(tmp_path / "q.jsonl", {"prediction": "a", "group": 1.5})), None)


def test_a_name_that_is_both_is_the_metric_unless_the_reward_is_asked_for(
    capsys: pytest.CaptureFixture[str], predictions: str
) -> None:
    assert list(scored(capsys, "length", "--predictions", predictions)) == ["length/mean_words"]
    # 3 words and 1 word, wanted are 2: both are half of it away
    scores = scored(capsys, "length", "--reward", "--predictions", predictions, "--option", "target=2")
    assert scores == {"length": {"corpus": 0.5, "rows": [0.5, 0.5]}}


def test_what_a_grader_prints_stays_out_of_the_values(
    capsys: pytest.CaptureFixture[str], predictions: str, tmp_path: Path
) -> None:
    chatty = tmp_path / "chatty.py"
    chatty.write_text(
        "print('imported')\ndef ones(completions):\n    print('asked')\n    return [1.0] * len(completions)\n"
    )
    assert run([f"{chatty}:ones", "--predictions", predictions, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"ones": {"corpus": 1.0, "rows": [1.0, 1.0]}}
    assert "imported" in printed.err and "asked" in printed.err


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str], predictions: str) -> None:
    assert run(["length", "--predictions", predictions]) == 0
    printed = capsys.readouterr().out
    assert "length/mean_words" in printed
    assert "2.0000" in printed  # 3 words and 1 word


def test_prompts_references_and_meta_come_from_either_file(tmp_path: Path) -> None:
    predictions = write(tmp_path / "p", {"prediction": "a\u2028b", "prompt": "p", "references": ["old"]})
    references = write(tmp_path / "r", {"references": ["r"], "meta": {"k": 1}, "prompt": "other"})
    (sample,) = read_samples(Path(predictions), Path(references))
    assert (sample.text, sample.prompt) == ("a\u2028b", "p")
    assert (sample.references, sample.meta) == (("r",), {"k": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read"),
        ("", "is empty"),
        ('{"prediction": "a"}\n{"prediction": \n', "line 2: is not JSON"),
        ('{"prediction": "a"}\n{"text": "b", "id": 1}\n', "line 2: lacks 'prediction'; there are: text, id"),
        ("[1]\n", r"line 1: got \[1\]; expected an object"),
        ('{"prediction": 3}\n', "sample 1: prediction is 3; expected a str"),
        ('{"prediction": "a", "references": "b"}\n', "expected a list of texts"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "predictions.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        run(["length", "--predictions", str(path)])


def test_files_belong_together_line_by_line(tmp_path: Path, predictions: str) -> None:
    references = write(tmp_path / "one.jsonl", {"references": ["a"]})
    with pytest.raises(InputError, match=r"has 2 lines and .* has 1"):
        run(["rouge", "--predictions", predictions, "--references", references])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rogue"], "no such metric or reward; did you mean 'rouge'"),
        (["rouge"], "give --references FILE"),
        (["length", "--option", "goal=3"], "goal: there is no such option"),
        (["increasing_numbers", "--option", "min_tokens"], "expected KEY=VALUE"),
        (["increasing_numbers", "--option", "min_tokens=many"], "min_tokens: got 'many'"),
        (["no_such_module:Mine"], "importing no_such_module failed"),
        ([f"{GRADERS}:Miscounting", "--option", "a=1"], "unexpected keyword|too many|takes"),
        ([f"{GRADERS}:Mapped"], r"metric Mapped: compute\(\) returned a list \[1\.0\]; expected a mapping"),
        ([f"{GRADERS}:Mapped", "--reward"], r"reward Mapped: score\(\) returned a dict"),
        ([f"{GRADERS}:Vowels", "--reward"], r"Vowels is no reward: it lacks score\(samples\)"),
    ],
)
def test_bad_requests_are_refused(predictions: str, argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run([*argv, "--predictions", predictions])


def test_samples_that_can_not_be_scored_are_counted_and_shown(tmp_path: Path) -> None:
    predictions = write(
        tmp_path / "p", {"prediction": "raise"}, {"prediction": "fine"}, {"prediction": "nan"}
    )
    with pytest.raises(InputError, match=r"2 of 3 samples could not be scored; the first: .*no such mood"):
        run([f"{GRADERS}:Moody", "--predictions", predictions])


def test_refusals_are_quick_and_need_no_ray() -> None:
    code = (
        "import sys\n"
        "from contracts.errors import InputError\n"
        "from services.commands.score import run\n"
        "try: run(['rogue', '--predictions', 'none.jsonl'])\n"
        "except InputError: print([m for m in ('ray', 'torch', 'nltk', 'rich') if m in sys.modules])\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.monotonic() - began < 10  # two seconds on a machine of its own


def test_bytes_that_are_no_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prediction": "a"}\n{"prediction": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"latin.jsonl, line 2: is not UTF-8 \(byte 0xe9\).*iconv -f latin1"):
        run(["length", "--predictions", str(path)])


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prediction": "a"}\n')
    assert [sample.text for sample in read_samples(path, None)] == ["a"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"references": [], "meta": {"intent": 1}}, "sample 2 has none: give --references FILE"),
        ({"references": ["", " "], "meta": {"intent": 1}}, "sample 2 has only empty ones"),
        (
            {"references": ["r"]},
            'needs meta data intent, and sample 2 has: none. Give it .*"meta": {"intent": …}',
        ),
        ({"references": ["r"], "meta": {"label": 1}}, "sample 2 has: label"),
    ],
)
def test_what_a_grader_needs_is_asked_for_before_it_starts(tmp_path: Path, row: dict, message: str) -> None:
    good = {"prediction": "a", "references": ["r", ""], "meta": {"intent": 1}}
    predictions = write(tmp_path / "p", good, {"prediction": "b", **row})
    for kind in ([], ["--reward"]):
        with pytest.raises(InputError, match=message):
            run([f"{GRADERS}:Picky", *kind, "--predictions", predictions])


def test_long_and_empty_and_odd_texts_are_scored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, references: str
) -> None:
    predictions = write(
        tmp_path / "p", {"prediction": "the cat " * 12_500}, '{"prediction": "\\u0000\\ufffd"}\n'
    )
    values = scored(capsys, "rouge", "--predictions", predictions, "--references", references)
    # 2 of 25,000 words are among the reference's 4: 2 · (2/25000)(2/4) / (2/25000 + 2/4) = 4 / 25004
    assert values["lexical/rouge_rouge1"]["rows"] == [pytest.approx(4 / 25_004), 0.0]
    empty = write(tmp_path / "e", {"prediction": ""}, {"prediction": " "})
    values = scored(capsys, "rouge", "--predictions", empty, "--references", references)
    assert values["lexical/rouge_rougeL"] == {"corpus": 0.0, "rows": [0.0, 0.0]}


def test_the_table_gives_what_standardizing_asks_for(
    capsys: pytest.CaptureFixture[str], predictions: str
) -> None:
    assert run(["length", "--reward", "--predictions", predictions]) == 0
    header, row = [
        [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line[:1] in "┃│"
    ]
    assert dict(zip(header, row, strict=True)) == {
        "": "length",
        "all samples": "2.0000",  # 3 words and 1 word
        "std": "1.0000",
        "lowest": "1.0000",
        "highest": "3.0000",
        "samples": "2",
    }
