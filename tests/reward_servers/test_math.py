"""The reward math: answers found and compared, oracles, and texts made to hang the comparison."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from contracts.scores import Sample
from reward_servers.answers.answer import reference_value
from reward_servers.answers.boxes import boxed
from reward_servers.answers.choices import choice_of
from reward_servers.answers.of_graders import answers_of
from reward_servers.graders.format import Format
from reward_servers.graders.math import Math
from reward_servers.isolation.confined import Limits
from reward_servers.server import RewardServer
from reward_servers.settings import Part
from reward_servers.verifiers.math import answer_of

ANY = Math(limits=Limits(seconds=2.0))
GOOD = Sample(r"so \boxed{\frac{1}{2}}", references=("0.5",))


def scores(reward: Math, *pairs: tuple[str, str]) -> list[float]:
    return list(reward.score([Sample(text, references=(right,)) for text, right in pairs]))


def test_equal_values_in_any_form_score_one() -> None:
    right = [
        ("The answer is 0.5", r"\frac{1}{2}"),
        (r"so \boxed{1/2}", "0.5"),
        ("He pays $1,234.", "#### 1234"),
        ("it is 42", "40 + 2 = <<40+2=42>>42\n#### 42"),
        (r"$x = 3$", "3"),
        (r"\boxed{x^2+2x+1}", "$(x+1)^2$"),
        (r"\boxed{(1,2)}", "(1, 2)"),
        (r"\boxed{\text{Tuesday}}", r"\text{Tuesday}"),
        ("4 no, 5", r"We get \boxed{5}."),
        ("The answer is −5", "-5"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{50\%}", r"50\%"),
    ]
    wrong = [("it is 41", "#### 42"), ("", "3"), ("no idea", "3"), (r"\boxed{x^2+1}", "(x+1)^2")]
    assert scores(ANY, *right) == [1.0] * len(right)
    assert scores(ANY, *wrong) == [0.0] * len(wrong)


def test_answers_in_tags_are_paid_and_thoughts_are_not() -> None:
    """The recipe of docs/rewards.md, reward=[math, {name: format, tags: [think, answer]}]."""
    rows = [
        ("<think>Three boxes of 5 and 2 more: first I say 13, no.</think><answer>12</answer>", "12"),
        ("<think>x is one of two</think><answer>1/2</answer>", "0.5"),
        ("<think>minus 12 it is</think><answer>-12</answer>", "-12"),
        ("<think>They pay that much.</think><answer>$12</answer>", "12"),
        ("<think>so</think><answer>12 apples</answer>", "12"),
    ]
    wrong = [("<think>3 * 5 - 3 = 12</think> <answer>13</answer>", "12")]
    assert scores(ANY, *rows, *wrong) == [1.0] * 5 + [0.0]
    assert Format(tags=("think", "answer")).score([Sample(text) for text, _ in rows]) == [1.0] * 5


def test_a_text_that_never_left_the_thought_scores_zero() -> None:
    """In a run the template is known to have opened the thought; a prompt's own end tells it, too."""
    cut_off = [Sample("So 3 * 4 = 12", references=("12",), opened=opened) for opened in ("<think>", "", None)]
    assert ANY.score(cut_off) == [0.0, 1.0, 1.0]
    assert ANY.score([Sample("So 3 * 4 = 12", prompt="3 * 4? <think>\n", references=("12",))]) == [0.0]


def test_any_of_several_references_may_be_right() -> None:
    assert ANY.score([Sample("3", references=("2", "3")), Sample("4", references=("2", "3"))]) == [1.0, 0.0]


def test_boxed_takes_the_last_box_and_nothing_else() -> None:
    pairs = [("The answer is 3", "3"), (r"\boxed{3}, no, \boxed{4}", "4"), (r"\boxed{3}, no, \boxed{4}", "3")]
    assert scores(Math(extract="boxed"), *pairs, (r"\boxed{\$5}", "5")) == [0.0, 1.0, 0.0, 1.0]


def test_last_number_takes_the_last_number() -> None:
    pairs = [
        ("3 apples, then 18.", "18"),
        ("It costs $1,234.50.", "1234.5"),
        ("minus: -7", "-7"),
        ("18-7", "7"),
        ("about 2.5e3 times", "2500"),
        ("x = −7", "-7"),
        ("none", "7"),
    ]
    assert scores(Math(extract="last_number"), *pairs) == [*[1.0] * 6, 0.0]


def test_hashes_takes_the_number_behind_them_near_the_end() -> None:
    pairs = [
        ("5 + 2 = 7\n#### 7", "5 + 2 = 7\n#### 7"),
        ("#### 6, no: #### $1,250", "1250"),
        ("The answer is 7.", "7"),  # right, but not in the form
        ("#### 8", "7"),
        ("#### 7" + " and so on" * 30, "7"),  # farther than 300 characters from the end
    ]
    assert scores(Math(extract="hashes"), *pairs) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_choice_takes_a_letter() -> None:
    pairs = [("The answer is (B).", "B"), ("A? No. Answer: C", "(C)"), (r"\boxed{\text{D}}", "D"), ("B", "A")]
    assert scores(Math(extract="choice"), *pairs) == [1.0, 1.0, 1.0, 0.0]
    assert choice_of("Answer: Yes", ("Yes", "No")) == "Yes"


TOWERS = {
    "tower of powers in a reference": ("3", "9**9**9**9"),
    "tower of powers": (r"\boxed{9^{9^{9^{9}}}}", "3"),
    "factorial of a factorial": (r"\boxed{(100000000!)!}", "3"),
    "integral": (r"\boxed{\int_0^1 x^{100000000} \sin(x) dx}", "3"),
    "open brackets": ("(" * 20000, "3"),
    "open boxes": (r"\boxed{" * 5000, "3"),
    "digits": ("1" * 200_000, "3"),
}
QUICK = ("tower of powers", "open brackets")  # each takes its whole limit; the others are long tests


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in TOWERS if name not in QUICK)],
)
def test_a_text_made_to_hang_scores_zero_and_costs_no_other_a_score(name: str) -> None:
    text, right = TOWERS[name]
    server = RewardServer(Part(name="math", options={"limits": {"seconds": 2.0}}))
    server.score([GOOD])
    began = time.monotonic()
    assert server.score([GOOD, Sample(text, references=(right,)), GOOD]) == [
        (1.0, None),
        (0.0, None),
        (1.0, None),
    ]
    assert time.monotonic() - began < 3 * (1 + 2) + 10


SIDES = st.one_of(
    st.integers(-99, 99).map(str),
    st.fractions(-9, 9, max_denominator=9).map(
        lambda fraction: rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}"
    ),
    st.sampled_from(["0.5", "x+1", "1+x", "(1,2)", r"\sqrt{2}", "2^3", "8"]),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=4, max_size=4))
def test_it_agrees_with_math_verify(pairs: list[tuple[str, str]]) -> None:
    expected = [float(verify(parse(f"${right}$"), parse(rf"So \boxed{{{text}}}."))) for text, right in pairs]
    assert scores(ANY, *[(rf"So \boxed{{{text}}}.", right) for text, right in pairs]) == expected


def test_equal_answers_are_one_vote() -> None:
    votes = [ANY.answer(text) for text in ("0.5", r"\boxed{\frac{1}{2}}", r"$\frac{2}{4}$", "none")]
    assert votes == ["1/2", "1/2", "1/2", None]


def test_votes_are_found_together_and_a_text_made_to_hang_has_none() -> None:
    texts = ["3 + 4 = 7\n#### 7", TOWERS["digits"][0], "none", r"\boxed{0.5}"] * 2
    assert answers_of(ANY, texts) == ["7", None, None, "1/2"] * 2
    assert [ANY.answer(text) for text in texts[2:4]] == [None, "1/2"]


def test_answers_are_found_in_references() -> None:
    assert reference_value("a\n#### 1,000") == "1,000"
    assert boxed(r"\boxed{\frac{1}{\boxed{2}}}") == "2"
    assert answer_of("no", "boxed") is None
