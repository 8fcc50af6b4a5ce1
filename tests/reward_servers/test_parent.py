"""PARENT by hand, and ToTTo's evaluation around it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.bleu_totto import BleuTotto
from reward_servers.graders.parent import Parent, ParentTotto
from reward_servers.text.detokenizer import detokenized
from reward_servers.text.parent import parent
from reward_servers.text.totto import cells_of, words

WORDS = st.lists(st.sampled_from("abcdef"), max_size=8)


def cell(value: str) -> dict[str, Any]:
    return {"value": value, "is_header": False, "column_span": 1, "row_span": 1}


def totto(text: str, *references: str, overlap: bool | None = None) -> Sample:
    meta = {
        "table": [[cell("Year"), cell("Title")], [cell("1990"), cell("The Long Way")]],
        "highlighted_cells": [[1, 0], [1, 1]],
        "table_page_title": "Ann Lee",
        "table_section_title": "Films",
    }
    return Sample(
        text, references=references, meta=meta if overlap is None else meta | {"overlap_subset": overlap}
    )


def test_parent_by_hand() -> None:
    # precision: 1-grams a, b, c agree and d is in no cell: 3/4. 2-grams: 2/3, as "c d" is worth nothing.
    # 3-grams: "b c d" has one word of three in the table: (1 + 1/3) / 2 = 2/3. 4-grams: two of four: 1/2.
    # recall: the reference's n-grams weigh what of them is in the table. 1: a, b of weight 1, found: 1.
    # 2: "a b" 1, "b c" 1/2, both found: 1. 3: "a b c" 2/3 found, "b c e" 1/3 not: 2/3. 4: smoothed.
    # table: "a b" is mentioned whole, "x" is not: 1/2. The reference mentions as much: its own λ is 1/2.
    values = parent(["a", "b", "c", "d"], [["a", "b", "c", "e"]], [["a", "b"], ["x"]], [["a", "b"], ["x"]])
    precision = (3 / 4 * 2 / 3 * 2 / 3 * 1 / 2) ** 0.25
    recall = ((2 / 3 * 1e-5) ** 0.25 * 0.5) ** 0.5
    assert values.precision == pytest.approx(precision)
    assert values.recall == pytest.approx(recall)
    assert values.f1 == pytest.approx(2 * precision * recall / (precision + recall + 1e-8))


def test_words_count_as_often_as_they_occur() -> None:
    # recall: one of the two "a" is found, "b" weighs nothing: 1/2. Orders 2 and 3 find nothing: smoothed. The
    # reference has no 4-gram: 1.
    once = parent(["a"], [["a", "a", "b"]], [["a"]], [["a"]], lambda_weight=0.0)
    assert once.recall == pytest.approx((1 / 2 * 1e-5 * 1e-5) ** 0.25)
    # precision: half of "a a" is in the reference, and none in the table; the other orders are smoothed.
    twice = parent(["a", "a"], [["a"]], [["x"]], [["x"]])
    assert twice.precision == pytest.approx((1 / 2 * 1e-15) ** 0.25)


def test_lambda_shifts_recall_from_the_references_to_the_table() -> None:
    text, reference, table = ["a", "b", "c", "d"], ["a", "b", "c", "d", "e"], [["a"], ["x"]]
    assert parent(text, [reference], table, table, lambda_weight=1.0).recall == pytest.approx(0.5)
    # by the reference alone: a is found; "a b", "a b c", "a b c d" too; the others weigh nothing
    assert parent(text, [reference], table, table, lambda_weight=0.0).recall == pytest.approx(1.0)


def test_the_best_reference_counts() -> None:
    text, table = ["a", "b", "c", "d"], [["a"]]
    good, bad = ["a", "b", "c", "d"], ["x", "y"]
    alone = parent(text, [good], table, table)
    assert parent(text, [bad, good], table, table) == alone
    assert alone.f1 == pytest.approx(1.0)


@settings(deadline=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, max_size=3))
def test_parent_is_a_fraction_of_whatever_is_compared(
    text: list[str], references: list[list[str]], table: list[list[str]]
) -> None:
    values = parent(text, references, table, table)
    assert all(0.0 <= value <= 1.0 + 1e-9 for value in (values.precision, values.recall, values.f1))


def test_precision_draws_from_the_table_and_recall_asks_for_highlights_and_titles() -> None:
    table, mentionable = cells_of(totto("", "").meta)
    assert table == [["year"], ["title"], ["1990"], ["the", "long", "way"], ["ann", "lee"], ["films"]]
    assert mentionable == [["1990"], ["the", "long", "way"], ["ann", "lee"], ["films"]]


def test_a_clitic_is_one_word_with_what_it_follows() -> None:
    assert words("A man 's film, don't ask .") == ["a", "man's", "film", ",", "don't", "ask", "."]
    assert words("A|B U.S.") == ["a", "|", "b", "u", ".", "s", "."]


@pytest.mark.parametrize(
    ("line", "expected"),  # Moses' own script printed this
    [
        (
            'the man \'s u.s. debut ( 1990 ) , he said : " go ! "',
            'the man\'s u.s. debut (1990), he said: "go!"',
        ),
        ("she won £ 5 [ in may ]", "she won £5 [in may]"),
        ("the jones ' house and ' his ' film", "the jones' house and 'his' film"),
        ("' hello ' by '' x ''", "'hello' by ''x''"),
        ("“ hello ” she said „ so “", "“hello ” she said„ so “"),
        ("東京 都 and tokyo 東京", "東京都 and tokyo 東京"),
        ("&quot; a &amp; b &quot; &#91; c &#93; d @-@ e", '"a & b" [c] d-e'),
        ("x_ 's ½ 's 9 's", "x_ 's ½ 's 9's"),
        ("cell|||' a\tcell|||c 's d", "cell|||' a\tcell|||c's d"),
        ("<null>", "<null>"),
        ("", ""),
    ],
)
def test_blanks_go_where_moses_takes_them_away(line: str, expected: str) -> None:
    assert detokenized(line) == expected


def test_words_of_texts_and_tables_are_detokenized_first() -> None:
    assert words("the song ' Hello ' for £ 5") == ["the", "song", "'hello'", "for", "£5"]
    meta = totto("", "").meta | {
        "table": [[cell("a 's | b"), cell("\tline\nbreak ")]],
        "highlighted_cells": [],
    }
    assert cells_of(meta)[0] == [["a's", "-", "b"], ["line", "break"], ["ann", "lee"], ["films"]]


def test_a_text_of_blanks_stands_for_none() -> None:
    blank, null = (totto(text, "<null> x y z") for text in (" \n", "<null>"))
    assert Parent().score([blank]) == Parent().score([null]) != [0.0]
    bleus = [BleuTotto().compute([sample])["table_to_text/bleu_overall"].corpus for sample in (blank, null)]
    assert bleus[0] == bleus[1]


def test_filling_up_with_null_pays_for_copying_the_table() -> None:
    # The reference mentions every cell, so that recall is its own n-grams': few in this other order. Against
    # "<null>" recall is the table's: 1.
    sample = totto("1990 the long way ann lee films", "films of ann lee : the long way in 1990")
    (plain,) = Parent().score([sample])
    (filled,) = Parent(null_references=True).score([sample])
    assert filled == pytest.approx(1.0) and plain < 0.6


def test_the_metric_gives_each_subset_that_is_marked() -> None:
    good, bad = "Ann Lee made The Long Way in 1990 .", "no"
    samples = [totto(good, good, overlap=True), totto(bad, good, overlap=False)]
    values = ParentTotto().compute(samples)
    assert set(values) == {
        f"table_to_text/parent_{subset}{key}"
        for subset in ("overall", "overlap", "non_overlap")
        for key in ("/precision", "/recall", "_f_score")
    }
    overall = values["table_to_text/parent_overall_f_score"]
    assert overall.rows[0] == values["table_to_text/parent_overlap_f_score"].corpus
    assert overall.corpus == pytest.approx(sum(overall.rows) / 2)
    assert overall.rows[0] > 0.9 > 0.01 > overall.rows[1]
    unmarked = ParentTotto().compute([totto(good, good)])
    assert not any("overlap" in key for key in unmarked)


def test_bleu_is_sacrebleus_on_lower_cased_text_filled_up_to_three() -> None:
    from sacrebleu import corpus_bleu

    samples = [
        totto("Ann Lee 's Film .", "ann lee's film .", "a film by ann lee"),
        totto("", "x y", overlap=True),
    ]
    expected = corpus_bleu(
        ["ann lee's film .", "<null>"],
        [["ann lee's film .", "x y"], ["a film by ann lee", "<null>"], ["<null>", "<null>"]],
    ).score
    values = BleuTotto().compute(samples)
    assert values["table_to_text/bleu_overall"].corpus == pytest.approx(expected / 100)
    assert list(values) == ["table_to_text/bleu_overall", "table_to_text/bleu_overlap"]
    bare = BleuTotto(null_references=False).compute(
        [totto("a b c d e", "a b c d e"), totto("a b c d", "x", "a b c d")]
    )
    assert bare["table_to_text/bleu_overall"].corpus == pytest.approx(1.0)


def test_odd_samples_are_scored_or_refused_in_plain_words() -> None:
    long = totto("the long way " * 8000, "The Long Way")
    assert 0.0 <= Parent().score([long, totto("", "x")])[1] <= 1.0
    with pytest.raises(InputError, match=r"meta data 'table'.*there is: none"):
        Parent().score([Sample("a", references=("a",))])
    broken = Sample("a", references=("a",), meta={"table": [[cell("a")]], "highlighted_cells": [[3, 0]]})
    with pytest.raises(InputError, match="not as expected"):
        Parent().score([broken])
