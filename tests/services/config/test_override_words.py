"""Values of the command line in any script, and Hydra's grammar where it has a meaning."""

import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from contracts.errors import InputError
from services.config.override_words import parse
from services.training.train.sweep import expand

FOREIGN = st.characters(min_codepoint=0x80, exclude_categories=["Cs"])
SIGNS = st.sampled_from("!#&;<>^`~/-.+%*@?|_")
LETTERS = st.characters(codec="ascii", categories=["Lu", "Ll", "Nd"])
WORDS = st.text(FOREIGN | SIGNS | LETTERS, min_size=1, max_size=12).filter(lambda word: not word.isascii())
RESERVED = ("false", "true", "null", "nan", "inf")


@given(WORDS)
@example("läufe")
@example(unicodedata.normalize("NFD", "läufe"))
@example("数据/训练.jsonl")
@example("🐦‍⬛")
@example("\u00a0 \u3000")
def test_a_text_of_any_script_is_its_own_value_wherever_it_stands(word: str) -> None:
    assert parse(f"output_dir={word}").value() == word
    assert parse(f"a={{train: {word}, b: [x y, {word}]}}").value() == {"train": word, "b": ["x y", word]}
    override = parse(f"a={word},b")
    assert override.is_sweep_override()
    assert [parse(text).value() for (text,) in expand([override.input_line])[0]] == [word, "b"]


@given(st.text(FOREIGN | LETTERS, min_size=1).filter(lambda key: not key.isascii() and not key[0].isdigit()))
def test_keys_are_of_any_script_too(key: str) -> None:
    assume(key[0] not in "0123456789")
    composed = unicodedata.normalize("NFC", key)
    assert parse(f"reward.{key}.weight=2").key_or_group == f"reward.{composed}.weight"
    assert parse(f"data={{{key}: 1}}").value() == {key: 1}


@pytest.mark.parametrize("reserved", RESERVED)
def test_no_foreign_letter_makes_a_word_that_the_grammar_reserves(reserved: str) -> None:
    for place in range(len(reserved)):
        word = f"{reserved[:place]}ä{reserved[place + 1 :]}"
        assert parse(f"a={word}").value() == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a='ä, \"b\" = [c]'", 'ä, "b" = [c]'),
        ('a="ä\\"ö"', 'ä"ö'),
        ("a=it's", "it's"),
        ("a=[ada's, 'x, y', l'été]", ["ada's", "x, y", "l'été"]),
        ("a=${oc.env:HOME}/läufe", "${oc.env:HOME}/läufe"),
        ("a=ä\\,b", "ä,b"),
        ("a=5", 5),
        ("a=-1e-3", -0.001),
        ("a=null", None),
        ("a={b: {c: [1, true]}}", {"b": {"c": [1, True]}}),
        ("a=two\nlines", "two\nlines"),
    ],
)
def test_quotes_escapes_numbers_and_interpolations_keep_their_meaning(text: str, value: object) -> None:
    assert str(parse(text).value()) == str(value)


def test_choices_and_ranges_still_make_a_sweep() -> None:
    assert expand(["a=ä,ö", "b=range(1,3)"])[0] == [
        ["a=ä", "b=1"],
        ["a=ä", "b=2"],
        ["a=ö", "b=1"],
        ["a=ö", "b=2"],
    ]


@pytest.mark.parametrize("text", ["~ä", "ä", "a=[ä", "a='ä", "a=f(ä", "a@ä=1", "=3"])
def test_what_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "typed"), [("--task=prompts", "task=prompts"), ("--num-epochs", "num_epochs=VALUE")]
)
def test_a_word_with_dashes_is_answered_with_the_word_to_type(text: str, typed: str) -> None:
    with pytest.raises(InputError, match=f"{text}: expected KEY=VALUE without dashes, such as {typed}$"):
        parse(text)


def test_a_key_of_letters_and_marks_is_that_of_whole_letters() -> None:
    """Labels are composed, too; a value stays as it is, since folders of both forms may lie side by side."""
    word = unicodedata.normalize("NFD", "güte")
    override = parse(f"reward.{word}.weight={word}")
    assert override.key_or_group == "reward.güte.weight" != f"reward.{word}.weight"
    assert override.value() == word
