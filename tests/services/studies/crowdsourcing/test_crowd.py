"""Crowdsourcing: pages that hide who wrote what and run nothing, answers that are checked, and figures."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contracts.errors import InputError
from services.commands.crowd import run
from services.data.tasks import TASKS
from services.studies.crowdsourcing.agreement import krippendorff_alpha
from services.studies.crowdsourcing.answers import Rating, Vote, read_answers
from services.studies.crowdsourcing.pages import (
    Item,
    escaped,
    likert_items,
    mturk_csv,
    page_html,
    pairwise_items,
)
from services.studies.crowdsourcing.questions import QUESTIONS, questions_for
from services.studies.crowdsourcing.results import holm, likert_results, pairwise_results
from services.studies.crowdsourcing.texts import Pair, Text, example_csv, read_pairs, read_texts, some

EVIL = '</p><script>alert(1)</script><img src=x onerror="alert(2)"> & ${prompt} {{ 7 * 7 }} "a", b\nnext'
CHROMIUM = shutil.which("chromium")


def write(path: Path, *rows: Sequence[object]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(newline="", encoding="utf-8")))


class Page(HTMLParser):
    """The text of a page, its tags, and the values of its attributes."""

    def __init__(self, source: str):
        super().__init__()
        self.text, self.tags, self.values = "", list[str](), list[tuple[str, str | None]]()
        self.feed(source)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += attrs


# Pages


@pytest.mark.parametrize("task", [*TASKS])
@pytest.mark.parametrize("kind", ["likert", "pairwise"])
def test_every_task_has_its_page_and_an_example(kind: str, task: str, tmp_path: Path) -> None:
    assert run(["page", kind, "--task", task, "--out", str(tmp_path)]) == 0
    questions = questions_for(task)
    page = Page((tmp_path / f"{kind}-seed0.html").read_text())
    example = rows_of(tmp_path / f"{kind}-example.csv")
    for row in example:
        texts = [value for column, value in row.items() if "algorithm" not in column and "_id" not in column]
        assert all(text in page.text for text in texts)
    assert "model_1" not in page.text
    expected = [questions.better] if kind == "pairwise" else [axis.question for axis in questions.axes]
    assert all(page.text.count(question) == len(example) for question in expected)
    radios = 2 if kind == "pairwise" else 10
    assert page.values.count(("type", "radio")) == radios * len(example)
    assert "model_1" in (tmp_path / f"{kind}-seed0-key.csv").read_text()


def test_axes_are_those_of_the_templates_and_two_for_each() -> None:
    names = {task: [axis.name for axis in questions.axes] for task, questions in QUESTIONS.items()}
    assert names["imdb"] == ["coherence", "sentiment"]
    assert names["commongen"] == ["fluency", "commonsense"]
    assert names["daily_dialog"] == ["fluency", "quality"]
    assert names["cnn_daily_mail"] == ["coherence", "quality"]
    assert names["totto"] == ["fluency", "correctness"]
    assert names["iwslt2017_en_de"] == ["adequacy", "fluency"]
    assert names["narrative_qa"] == ["correctness", "fluency"]
    assert set(names) == set(TASKS)


def test_what_a_model_writes_is_shown_and_never_run() -> None:
    items = [Item("a1", EVIL, (EVIL,), ("<ppo>",))]
    source = page_html("likert", questions_for("imdb"), items, "0123", "<title>")
    page = Page(source)
    assert page.text.count(EVIL) == 2
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert not [name for name, _ in page.values if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in source and "<ppo>" not in page.text


def test_the_file_for_mechanical_turk_is_escaped() -> None:
    (row,) = csv.DictReader(io.StringIO(mturk_csv("likert", [Item("a1", "p", (EVIL,), ("ppo",))], "0123")))
    assert not set("<\"'$\n") & set(row["machine_completion"].replace("<br>", ""))
    assert html.unescape(row["machine_completion"].replace("<br>", "\n")) == EVIL
    assert set(row) == {"page", "item", "prompt", "machine_completion"}  # nothing tells who wrote it


@settings(deadline=None)  # a busy machine takes its time
@given(st.text())
def test_escaping_loses_nothing_and_leaves_no_markup(text: str) -> None:
    shown = escaped(text)
    assert "<" not in shown.replace("<br>", "") and "${" not in shown
    assert html.unescape(shown.replace("<br>", "\n")).split("\n") == (text.splitlines() or [""])


def test_the_template_for_mechanical_turk_has_the_columns_as_variables(tmp_path: Path) -> None:
    run(["page", "pairwise", "--task", "xsum", "--out", str(tmp_path)])
    template = (tmp_path / "pairwise-seed0-mturk.html").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", template)) == {"prompt", "choice_A", "choice_B"}
    assert "<script" not in template and "<form" not in template


TEXTS = [Text(f"prompt {n}", f"{name} wrote {n}", name) for n in range(20) for name in ("ppo", "nlpo")]


def test_the_order_is_the_seeds_and_the_items_are_not() -> None:
    first, again, other = likert_items(TEXTS, 0), likert_items(TEXTS, 0), likert_items(TEXTS, 1)
    assert first == again != other
    assert {item.id: item for item in first} == {item.id: item for item in other}
    assert [item.texts[0] for item in first] != [text.text for text in TEXTS]


def test_the_sides_of_a_pair_are_the_seeds_and_its_id_is_not() -> None:
    pairs = [Pair(TEXTS[n], TEXTS[n + 1]) for n in range(0, 40, 2)]
    turned = [Pair(pair.second, pair.first) for pair in pairs]
    first, other = pairwise_items(pairs, 0), pairwise_items(pairs, 1)
    assert pairwise_items(turned, 0) == first  # the order in the file says nothing
    assert {item.id for item in first} == {item.id for item in other}
    left = [item.algorithms[0] for item in first]
    assert 3 < left.count("ppo") < 17
    sides = {item.id: item.algorithms for item in first}
    assert any(sides[item.id] != item.algorithms for item in other)
    assert all(item.texts[0].startswith(item.algorithms[0]) for item in first)


def test_pairs_are_all_two_algorithms_of_a_prompt(tmp_path: Path) -> None:
    rows = [["p", f"{name} text", name] for name in ("a", "b", "c")] + [["q", "alone", "a"]]
    file = write(tmp_path / "texts.csv", ["prompt", "machine_completion", "algorithm"], *rows, rows[0])
    assert len(read_texts([str(file)])) == 4  # a line given twice is one text
    pairs = [(pair.first.algorithm, pair.second.algorithm) for pair in read_pairs([str(file)])]
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]


def test_what_runs_have_written_can_be_judged(tmp_path: Path) -> None:
    rows = [{"prompt_text": "p", "generated_text": "by ppo", "reward": 1.0}]
    (tmp_path / "epoch_5_test_split_predictions.json").write_text(json.dumps(rows))
    (tmp_path / "evaluation_test.json").write_text(
        json.dumps({"predictions": [{"prompt_text": "p", "generated_text": "by nlpo"}]})
    )
    sources = [f"ppo={tmp_path}/epoch_5_test_split_predictions.json", f"nlpo={tmp_path}/evaluation_test.json"]
    assert read_texts(sources) == [Text("p", "by ppo", "ppo"), Text("p", "by nlpo", "nlpo")]
    assert len(read_pairs(sources)) == 1


def test_rl4lms_pairwise_files_have_a_concept_for_a_prompt(tmp_path: Path) -> None:
    columns = ["concept", "choice_A", "choice_B", "choice_A_id", "choice_B_id"]
    file = write(tmp_path / "f.csv", columns, ["dog", "a dog", "dog dog", "x", "y"])
    assert read_pairs([str(file)]) == [Pair(Text("dog", "a dog", "x"), Text("dog", "dog dog", "y"))]


def test_some_prompts_are_drawn_with_all_their_texts_whatever_the_order() -> None:
    drawn = some(TEXTS, 5)
    assert len(drawn) == 10 and len({text.prompt for text in drawn}) == 5
    assert set(some(TEXTS[::-1], 5)) == set(drawn)
    assert {text.prompt for text in drawn} != {text.prompt for text in TEXTS[:10]}


HEAD = "prompt,machine_completion,algorithm\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file"),
        ("", "has no rows"),
        (HEAD, "has no rows"),
        ("prompt,text,algorithm\na,b,c\n", "lacks the column machine_completion; there are: prompt, text"),
        (HEAD + "a,b\n", "row 2: has fewer values than there are columns"),
        (HEAD + "a,b,c\na, b, c, d\n", "row 3: has more values than there are columns"),
        (HEAD + "a,b,\n", "row 2: algorithm is empty"),
        (HEAD + "a,\xe9,c\n", r"is not UTF-8 \(byte 38\)"),
    ],
)
def test_bad_texts_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "texts.csv"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        run(["page", "likert", "--task", "imdb", "--predictions", str(file), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read"),
        ("x", "is not JSON"),
        ("{}", "expected a list of predictions"),
        ('[{"prompt_text": "a"}]', "expected rows with prompt_text and generated_text"),
    ],
)
def test_bad_predictions_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "predictions.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts([f"ppo={file}"])


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such task; did you mean 'imdb'"):
        run(["page", "likert", "--task", "imbd", "--out", str(tmp_path)])
    alone = write(tmp_path / "f.csv", ["prompt", "machine_completion", "algorithm"], ["a", "b", "c"])
    with pytest.raises(InputError, match="there is nothing to compare"):
        read_pairs([str(alone)])
    columns = ["prompt", "choice_A", "choice_B", "choice_A_id", "choice_B_id"]
    with pytest.raises(InputError, match="row 2: choice_A_id is 'x' and choice_B_id 'x'; expected two names"):
        read_pairs([str(write(tmp_path / "g.csv", columns, ["p", "a", "b", "x", "x"]))])


def test_a_key_is_never_lost(tmp_path: Path) -> None:
    argv = ["page", "likert", "--out", str(tmp_path), "--task"]
    run([*argv, "imdb"])
    run([*argv, "imdb"])  # the same again is no loss
    with pytest.raises(InputError, match=r"is the key of other texts.*Choose another --out or --seed"):
        run([*argv, "commongen"])


# Answers


def answers(tmp_path: Path, *rows: Sequence[object], columns: Sequence[str] = ()) -> Path:
    return write(tmp_path / "answers.csv", columns or ["item", "rater", "algorithm", "fluency"], *rows)


def test_answers_are_joined_with_the_key_of_their_page(tmp_path: Path) -> None:
    columns = ["page", "item", "rater", "choice"]
    file = write(
        tmp_path / "a.csv", columns, ["p1", "i", "ann", "A"], ["p2", "i", "bob", "A"], ["p2", "j", "bob", ""]
    )
    sides = ["page", "item", "choice_A_id", "choice_B_id"]
    first = write(tmp_path / "k1.csv", sides, ["p1", "i", "ppo", "nlpo"])
    second = write(tmp_path / "k2.csv", sides, ["p2", "i", "nlpo", "ppo"], ["p2", "j", "nlpo", "ppo"])
    # the same letter means the other algorithm on the page of the other seed
    assert read_answers([file], [first, second]) == [
        Vote("i", "ann", ("nlpo", "ppo"), "ppo"),
        Vote("i", "bob", ("nlpo", "ppo"), "nlpo"),
    ]
    with pytest.raises(InputError, match="no key lists item i of page 'p2'"):
        read_answers([file], [first])


def test_batches_of_mechanical_turk_are_read_as_they_are(tmp_path: Path) -> None:
    columns = [
        "HITId",
        "WorkerId",
        "Input.page",
        "Input.item",
        "Input.prompt",
        "Answer.fluency",
        "Answer.quality",
    ]
    file = write(tmp_path / "batch.csv", columns, ["h", "w1", "p1", "i", "text", "4", ""])
    key = write(tmp_path / "key.csv", ["page", "item", "algorithm"], ["p1", "i", "ppo"])
    assert read_answers([file], [key]) == [Rating("i", "w1", "ppo", {"fluency": 4}, prompt="text")]


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (["item", "algorithm", "fluency"], [["i", "ppo", 3]], "lacks the column rater"),
        (["item", "rater", "algorithm"], [["i", "ann", "ppo"]], "has no column with answers"),
        (
            [],
            [["i", "ann", "ppo", 5], ["j", "ann", "ppo", 7]],
            "row 3: fluency is '7'; expected a whole number",
        ),
        ([], [["i", "ann", "ppo", "4.5"]], "fluency is '4.5'; expected a whole number from 1 to 5"),
        ([], [["i", "", "ppo", 4]], "row 2: rater is empty"),
        (
            [],
            [["i", "ann", "ppo", 4], ["i", "ann", "ppo", 3]],
            "row 3: ann has answered item i already, in .*row 2",
        ),
        ([], [["1", "ann", "ppo", 4], ["1", "bob", "nlpo", 3]], "item 1 is of ppo in one answer and of nlpo"),
        ([], [["i", "ann", "ppo", ""]], "the files hold no answers"),
        (["item", "rater", "fluency"], [["i", "ann", 4]], "does not say who wrote the text; give --key FILE"),
        (
            ["item", "rater", "choice", "choice_A_id", "choice_B_id"],
            [["i", "ann", "C", "ppo", "nlpo"]],
            "choice is 'C'; expected A or B",
        ),
        (
            ["item", "rater", "choice", "choice_A_id", "choice_B_id"],
            [["i", "ann", "A", "ppo", "ppo"]],
            "both texts are of ppo; expected two algorithms",
        ),
    ],
)
def test_bad_answers_are_refused(
    tmp_path: Path, columns: list[str], rows: list[list[object]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(["aggregate", str(answers(tmp_path, *rows, columns=columns))])


def test_the_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    ratings = answers(tmp_path, ["i", "ann", "ppo", 4])
    votes = write(
        tmp_path / "votes.csv",
        ["item", "rater", "choice", "choice_A_id", "choice_B_id"],
        ["i", "b", "A", "x", "y"],
    )
    with pytest.raises(InputError, match="give one kind at a time"):
        run(["aggregate", str(ratings), str(votes)])
    key = write(tmp_path / "key.csv", ["page", "item", "choice_A_id", "choice_B_id"], ["p", "i", "x", "y"])
    rated = write(tmp_path / "rated.csv", ["page", "item", "rater", "fluency"], ["p", "i", "ann", 3])
    with pytest.raises(InputError, match="the key lacks algorithm, so it is for the other kind of page"):
        run(["aggregate", str(rated), "--key", str(key)])


# Agreement

# Krippendorff (2011), section C: four observers, twelve units, nothing where one did not observe.
PUBLISHED = {
    "A": "1 2 3 3 2 1 4 1 2 . . .",
    "B": "1 2 3 3 2 2 4 1 2 5 . 3",
    "C": ". 3 3 3 2 3 4 2 2 5 1 .",
    "D": "1 2 3 3 2 4 4 1 2 5 1 .",
}


def published() -> dict[str, dict[str, int]]:
    judgements: dict[str, dict[str, int]] = {str(unit): {} for unit in range(12)}
    for rater, values in PUBLISHED.items():
        for unit, value in enumerate(values.split()):
            if value != ".":
                judgements[str(unit)][rater] = int(value)
    return judgements


def test_alpha_is_the_published_one() -> None:
    nominal = krippendorff_alpha(published(), "nominal", (1, 2, 3, 4, 5))
    ordinal = krippendorff_alpha(published(), "ordinal", (1, 2, 3, 4, 5))
    assert nominal.alpha == pytest.approx(0.743, abs=5e-4)
    assert ordinal.alpha == pytest.approx(0.815, abs=5e-4)
    assert (nominal.num_items, nominal.num_shared, nominal.num_raters) == (12, 11, 4)


def test_alpha_worked_by_hand() -> None:
    # Two raters, units (1, 1), (2, 2), (1, 2): of the 6 values 3 are 1 and 3 are 2. Observed disagreement
    # 2 / 6; expected 2 · 3 · 3 / (6 · 5) = 0.6. Alpha = 1 − (1 / 3) / 0.6 = 4 / 9.
    judgements = {"i": {"a": 1, "b": 1}, "j": {"a": 2, "b": 2}, "k": {"a": 1, "b": 2}}
    assert krippendorff_alpha(judgements, "nominal", (1, 2)).alpha == pytest.approx(4 / 9)


@pytest.mark.parametrize(
    ("judgements", "why"),
    [
        ({"i": {"ann": 1}, "j": {"ann": 2}}, "one person alone has answered"),
        ({"i": {"ann": 1}, "j": {"bob": 2}}, "no two people judged the same item"),
        ({"i": {"ann": 3, "bob": 3}, "j": {"bob": 2}}, "everybody always gave the same answer"),
    ],
)
def test_alpha_is_undefined_with_a_reason(judgements: dict[str, dict[str, int]], why: str) -> None:
    agreement = krippendorff_alpha(judgements, "ordinal", (1, 2, 3, 4, 5))
    assert (agreement.alpha, agreement.why_not) == (None, why)


@settings(deadline=None)  # a busy machine takes its time
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=2, max_size=8),
    st.sampled_from(["nominal", "ordinal"]),
    st.randoms(),
)
def test_alpha_knows_no_order_and_is_at_most_one(rows: list[list[int]], level: str, random: object) -> None:
    judgements = {str(unit): dict(zip("abc", row, strict=True)) for unit, row in enumerate(rows)}
    turned = {unit: dict(reversed(row.items())) for unit, row in reversed(judgements.items())}
    first = krippendorff_alpha(judgements, level, (1, 2, 3, 4, 5))  # type: ignore[arg-type]
    second = krippendorff_alpha(turned, level, (1, 2, 3, 4, 5))  # type: ignore[arg-type]
    if first.alpha is None:
        assert second.alpha is None
    else:
        assert first.alpha == pytest.approx(second.alpha) and first.alpha <= 1 + 1e-9


# Figures


def rating(item: str, rater: str, algorithm: str, fluency: int) -> Rating:
    return Rating(item, rater, algorithm, {"fluency": fluency})


def test_each_text_counts_once_however_many_judged_it() -> None:
    ratings = [
        rating("1", "ann", "ppo", 5),
        rating("1", "bob", "ppo", 4),  # 4.5
        rating("2", "ann", "ppo", 3),
        rating("3", "ann", "ppo", 3),
        rating("4", "ann", "nlpo", 1),
    ]
    tables = likert_results(ratings)
    nlpo, ppo = tables["means"]
    # 4.5, 3, 3: mean 3.5, variance (1 + 0.25 + 0.25) / 2 = 0.75, standard error √(0.75 / 3) = 0.5
    assert ppo == {
        "axis": "fluency",
        "algorithm": "ppo",
        "mean": pytest.approx(3.5),
        "standard_error": pytest.approx(0.5),
        "num_texts": 3,
        "num_prompts": 3,
    }
    assert (nlpo["mean"], nlpo["standard_error"]) == (1.0, None)
    assert tables["tests"] == []  # of one text nothing is known about the spread
    assert tables["agreement"][0]["num_shared"] == 1


def test_differences_are_tested_over_texts() -> None:
    draw = np.random.default_rng(0)
    groups = {name: draw.integers(low, 6, 12).tolist() for name, low in (("a", 1), ("b", 1), ("c", 4))}
    ratings = [
        rating(f"{name}{number}", "ann", name, value)
        for name, values in groups.items()
        for number, value in enumerate(values)
    ]
    anova, ab, ac, bc = likert_results(ratings)["tests"]
    assert anova["p"] == pytest.approx(stats.f_oneway(*groups.values()).pvalue) and anova["p"] < 0.05
    assert (ab["compared"], ac["compared"], bc["compared"]) == ("a − b", "a − c", "b − c")
    assert ac["difference"] == pytest.approx(np.mean(groups["a"]) - np.mean(groups["c"]))
    assert ac["p"] == pytest.approx(stats.tukey_hsd(*groups.values()).pvalue[0, 2])
    assert ac["p"] < 0.05 < ab["p"]


def test_judging_the_same_again_makes_nothing_more_certain() -> None:
    ratings = [
        rating(f"{name}{n}", "ann", name, 1 + (n + k) % 5) for k, name in enumerate("ab") for n in range(7)
    ]
    doubled = ratings + [
        rating(text_rating.item, "bob", text_rating.algorithm, text_rating.scores["fluency"])
        for text_rating in ratings
    ]
    assert likert_results(doubled)["means"] == likert_results(ratings)["means"]
    assert likert_results(doubled)["tests"] == likert_results(ratings)["tests"]
    assert likert_results(doubled)["agreement"][0]["alpha"] == 1.0


def test_several_texts_of_a_prompt_make_nothing_more_certain() -> None:
    draw = np.random.default_rng(0)
    once = [
        Rating(f"{name}{n}", "ann", name, {"fluency": int(draw.integers(low, 6))}, prompt=f"p{n}")
        for name, low in (("a", 1), ("b", 3))
        for n in range(8)
    ]
    four = [
        replace(text_rating, item=f"{text_rating.item}/{copy}") for text_rating in once for copy in range(4)
    ]
    single, several = likert_results(once), likert_results(four)
    assert several["tests"] == single["tests"] and single["tests"][1]["p"] > 0
    for row, more in zip(single["means"], several["means"], strict=True):
        assert more["standard_error"] == pytest.approx(row["standard_error"])
        assert (more["num_texts"], more["num_prompts"], row["num_texts"]) == (32, 8, 8)
    unknown = likert_results(
        [replace(text_rating, prompt="") for text_rating in four]
    )  # as an older key has it
    assert unknown["means"][0]["standard_error"] < single["means"][0]["standard_error"] / 1.9


def test_several_pairs_of_a_prompt_decide_it_together() -> None:
    # Three prompts with three pairs each: nlpo takes all of the first, two of the second, none of the third.
    cast = [replace(vote, prompt=f"p{n // 3}") for n, vote in enumerate(votes(*"nnn", *"nnp", *"ppp"))]
    (row,) = pairwise_results(cast)["pairs"]
    assert (row["first_won"], row["second_won"], row["num_prompts"]) == (5, 4, 3)
    assert row["p"] == 1.0  # two prompts of three
    nlpo, _ = pairwise_results(cast)["win_rates"]
    assert (nlpo["num_pairs"], nlpo["num_prompts"]) == (9, 3)
    # The prompts' rates are 1, ⅔ and 0: variance (16 + 1 + 25) / 81 / 2, over 3
    assert nlpo["standard_error"] == pytest.approx((42 / 81 / 2 / 3) ** 0.5)
    swept = [replace(vote, prompt=f"p{n // 3}") for n, vote in enumerate(votes(*"n" * 9))]
    assert pairwise_results(swept)["pairs"][0]["p"] == 2 / 2**3  # and not 2 / 2⁹


def test_a_key_names_prompts_and_an_older_one_does_not(tmp_path: Path) -> None:
    texts = [["p", f"{name} {n}", name] for name in ("x", "y") for n in range(2)]
    file = write(tmp_path / "t.csv", ["prompt", "machine_completion", "algorithm"], *texts)
    argv = ["page", "likert", "--task", "imdb", "--out", str(tmp_path), "--predictions", str(file)]
    run(argv)
    key = tmp_path / "likert-seed0-key.csv"
    rows = rows_of(key)
    assert len({row["prompt"] for row in rows}) == 1 and rows[0]["prompt"] != "p"
    answer_rows = [[row["page"], row["item"], "ann", 3] for row in rows]
    rated = write(tmp_path / "rated.csv", ["page", "item", "rater", "fluency"], *answer_rows)
    assert {answer.prompt for answer in read_answers([rated], [key])} == {rows[0]["prompt"]}
    with_names = write(
        tmp_path / "own.csv", ["item", "rater", "algorithm", "prompt", "fluency"], ["i", "a", "x", "p", 3]
    )
    assert read_answers([with_names], []) == [Rating("i", "a", "x", {"fluency": 3}, "p")]

    write(
        key, ["page", "item", "algorithm"], *([row[c] for c in ("page", "item", "algorithm")] for row in rows)
    )
    assert {answer.prompt for answer in read_answers([rated], [key])} == {""}
    run(argv)  # the same texts: the older key is no other one
    assert rows_of(key) == rows


def votes(*winners: str, pair: tuple[str, str] = ("nlpo", "ppo")) -> list[Vote]:
    """A string an item, a letter a person: n or p."""
    names = {name[0]: name for name in pair}
    return [
        Vote(f"{pair}{number}", f"rater{k}", pair, names[letter])
        for number, letters in enumerate(winners)
        for k, letter in enumerate(letters)
    ]


def test_a_pairs_sign_test_counts_majorities() -> None:
    tables = pairwise_results(votes("ppp", "ppn", "nnp", "pn", "ppp", "p", "p", "p"))
    (row,) = tables["pairs"]
    # majorities: six for ppo, one for nlpo, one tie; 2 · (1 + 7) / 2⁷ = 0.125
    assert (row["first_won"], row["second_won"], row["ties"]) == (1, 6, 1)
    assert row["p"] == row["p_holm"] == pytest.approx(0.125)
    assert row["votes_for_first"] == pytest.approx(4 / 17)
    nlpo, ppo = tables["win_rates"]
    # of the items 0, ⅓, ⅔, ½, 0, 0, 0, 0 are nlpo's
    assert nlpo["win_rate"] == pytest.approx(1.5 / 8) and ppo["win_rate"] == pytest.approx(6.5 / 8)
    assert nlpo["standard_error"] == pytest.approx(ppo["standard_error"])
    assert nlpo["num_pairs"] == 8
    (agreement,) = tables["agreement"]
    assert (agreement["pair"], agreement["num_shared"], agreement["num_raters"]) == ("nlpo, ppo", 5, 3)
    # Shared items have 10 p and 4 n. Each of the three on which people differ adds 2 to the observed
    # disagreement, 6 / 14; expected is 2 · 10 · 4 / (14 · 13). Alpha = 1 − (6 / 14) / (80 / 182) = 0.025.
    assert agreement["alpha"] == pytest.approx(1 - (6 / 14) / (80 / 182))


def test_pairs_are_corrected_for_being_several() -> None:
    outcome = pairwise_results(votes(*"nnnnnn") + votes(*"ns" * 3, pair=("nlpo", "supervised")))
    first, second = outcome["pairs"]
    # six of six: 2 / 2⁶ = 0.03125, doubled; three of six: 1
    assert (first["p"], first["p_holm"]) == (pytest.approx(0.03125), pytest.approx(0.0625))
    assert (second["p"], second["p_holm"]) == (1.0, 1.0)
    assert {row["algorithm"]: row["win_rate"] for row in outcome["win_rates"]} == {
        "nlpo": pytest.approx(9 / 12),
        "ppo": 0.0,
        "supervised": 0.5,
    }


def test_ties_alone_decide_nothing() -> None:
    (row,) = pairwise_results(votes("pn", "np"))["pairs"]
    assert (row["first_won"], row["second_won"], row["ties"], row["p"]) == (0, 0, 2, 1.0)


@settings(deadline=None)  # a busy machine takes its time
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_probabilities_are_no_smaller_and_keep_their_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(before <= after <= 1 for before, after in zip(values, adjusted, strict=True))
    by_value = [adjusted[index] for index in np.argsort(values, kind="stable")]
    assert by_value == sorted(by_value)


# The command


def test_everybody_answers_the_example_and_the_tables_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        run(["page", "likert", "--task", "commongen", "--out", str(tmp_path), f"--seed={seed}"])
    files = []
    for seed in (0, 1):
        key = rows_of(tmp_path / f"likert-seed{seed}-key.csv")
        good = {row["item"]: row["algorithm"] == "model_1" for row in key}
        rows = [
            [row["page"], row["item"], f"r{seed}", 5 if good[row["item"]] else 2, 4 - seed] for row in key
        ]
        columns = ["page", "item", "rater", "fluency", "commonsense"]
        files.append(str(write(tmp_path / f"answers{seed}.csv", columns, *rows)))
    keys = [str(tmp_path / f"likert-seed{seed}-key.csv") for seed in (0, 1)]
    capsys.readouterr()
    assert run(["aggregate", *files, "--key", *keys, "--out", str(tmp_path / "results")]) == 0
    printed = capsys.readouterr().out
    assert "Agreement between people" in printed and "model_1 − model_2" not in printed  # no spread at all
    tables = json.loads((tmp_path / "results" / "results.json").read_text())
    means = {(row["axis"], row["algorithm"]): row["mean"] for row in tables["means"]}
    assert means == {
        ("fluency", "model_1"): 5,
        ("fluency", "model_2"): 2,
        ("commonsense", "model_1"): 3.5,
        ("commonsense", "model_2"): 3.5,
    }
    assert tables["agreement"][0]["alpha"] == 1.0
    assert [row["mean"] for row in rows_of(tmp_path / "results" / "means.csv")] == [
        "5.0",
        "2.0",
        "3.5",
        "3.5",
    ]
    assert run(["aggregate", *files, "--key", *keys, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tables


def test_one_person_alone_is_told_that_there_is_no_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert (
        run(["aggregate", str(answers(tmp_path, ["i", "ann", "[red]ppo", 4], ["j", "ann", "nlpo", 2]))]) == 0
    )
    printed = capsys.readouterr().out
    assert "one person alone has answered" in printed and "[red]ppo" in printed


def test_examples_can_be_read_back(tmp_path: Path) -> None:
    for task in TASKS:
        file = tmp_path / "example.csv"
        file.write_text(example_csv("likert", questions_for(task)))
        assert len(read_texts([str(file)])) == 4 and len(read_pairs([str(file)])) == 2


CLICKS = """
<script nonce="{nonce}">
  document.getElementById("rater").value = 'O"Hara, Ann';
  document.querySelectorAll('input[value="B"]').forEach(function (input) {{ input.click(); }});
  URL.createObjectURL = function (blob) {{
    blob.text().then(function (text) {{ document.body.textContent = "CSV" + text + "END"; }});
    return "blob:nothing";
  }};
  document.getElementById("download").click();
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to open the page in")
def test_what_a_browser_downloads_is_what_is_read(tmp_path: Path) -> None:
    rows = [["p", EVIL, "good", "ppo", "nlpo"], ["q", "x", EVIL, "ppo", "nlpo"]]
    columns = ["prompt", "choice_A", "choice_B", "choice_A_id", "choice_B_id"]
    texts = write(tmp_path / "texts.csv", columns, *rows)
    run(["page", "pairwise", "--task", "imdb", "--predictions", str(texts), "--out", str(tmp_path)])
    page = tmp_path / "pairwise-seed0.html"
    key = tmp_path / "pairwise-seed0-key.csv"
    clicks = CLICKS.format(nonce=rows_of(key)[0]["page"])
    page.write_text(page.read_text().replace("</body>", f"{clicks}</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags,
            *quiet,
            f"--user-data-dir={tmp_path / 'user'}",
            "--virtual-time-budget=3000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    match = re.search("CSV(.*)END", html.unescape(done.stdout), re.DOTALL)
    assert match is not None, done.stderr
    (tmp_path / "answers.csv").write_text(match[1])
    sides = {row["item"]: row["choice_B_id"] for row in rows_of(key)}
    read = read_answers([tmp_path / "answers.csv"], [key])
    assert {(vote.item, vote.rater, vote.winner) for vote in read if isinstance(vote, Vote)} == {
        (item, 'O"Hara, Ann', winner) for item, winner in sides.items()
    }
