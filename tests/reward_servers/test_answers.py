r"""Answers in responses, and equal answers, in models' and data sets' forms.

Each row was worked out by hand. Many forms are those of public reports about math-verify (14, 60,
71, 76), hendrycks/math (23), NeMo-Skills (41), opencompass (2647) and officeqa (23).
"""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_servers.answers.answer import response_part
from reward_servers.verifiers.math import perform

Row = tuple[str, str, int]  # text, reference, score

THOUGHTS: list[Row] = [
    ("<think>12, no</think><answer>13</answer>", "13", 1),
    ("<think>It is 12", "12", 0),  # cut off: nothing was answered
    ("<think>12</think>", "12", 0),
    ("12\n</think>\n13", "13", 1),  # the template opened the thought
    ("12\n</think>\n13", "12", 0),
    (r"<think>\boxed{12}</think> \boxed{13}", "12", 0),
    (r"\boxed{12} <think>\boxed{13}</think>", "12", 1),
    ("<think>so <think>12</think> 13</think> 14", "14", 1),
    ("[THINK]12[/THINK]13", "13", 1),
    ("[THINK]12", "12", 0),
    ("<seed:think>12</seed:think>13", "13", 1),
    ("<|inner_prefix|>12<|inner_suffix|>13", "13", 1),
    ("<|START_THINKING|>12<|END_THINKING|>13", "13", 1),
    (
        "<|channel|>analysis<|message|>12<|end|><|start|>assistant<|channel|>final<|message|>13<|return|>",
        "13",
        1,
    ),
    ("<|channel|>analysis<|message|>It is 12", "12", 0),
    ("analysisWe get 12.assistantfinal13", "13", 1),  # the same without special tokens
    ("<reasoning>12</reasoning><answer>13</answer>", "13", 1),
    ("<thought>12</thought> The answer is 13.", "13", 1),
    ("Here is my thought process: 12. Here is my response: 13", "13", 1),
]
TAGS: list[Row] = [
    ("<answer>12</answer>", "12", 1),
    ("<answer>12</answer><answer>13</answer>", "13", 1),
    (r"<answer>\boxed{12}</answer>", "12", 1),
    ("<answer>The answer is 12 apples.</answer>", "12", 1),
    ("<answer>12", "12", 1),  # a stop string took the closing tag
    ("<answer></answer> 12", "12", 0),
    ("<answer>12</answer>\n\nOf 20, let me know!", "12", 1),
    ("<SOLUTION>12</SOLUTION>", "12", 1),
]
BOXES: list[Row] = [
    (r"\boxed 2", "2", 1),
    (r"\fbox{2}", "2", 1),
    (r"\boxed\frac{1}{2}", "0.5", 1),
    (r"\boxed{\boxed{2}}", "2", 1),
    (r"\boxed{2} \text{ and } \boxed{3}", "2,3", 1),
    (r"First \boxed{2}. Then we get \boxed{3}.", "3", 1),
    (r"First root \boxed{2}. Second root \boxed{3}.", "2, 3", 1),
    (r"\boxed{2} or \boxed{3}", "3", 0),  # two answers where one is right
    (r"\boxed{3}, no, \boxed{4}", "3", 0),
    (r"\boxed{12", "12", 0),
    (r"\boxed{}", "3", 0),
    (r"\boxed{2, 3, 5}", r"The primes are $\boxed{2}$, $\boxed{3}$, and $\boxed{5}$.", 1),
    (r"\boxed{5}", r"The primes are $\boxed{2}$, $\boxed{3}$, and $\boxed{5}$.", 0),
    (r"\boxed{7}", r"So $\boxed{7}$. Another way gives $\boxed{7}$, too.", 1),
]
STATED: list[Row] = [
    ("The answer is $45$.", "45", 1),
    (r"The answer is \(45\).", "45", 1),
    ("The answer is\n$$\n45\n$$\nI hope it is correct.", "45", 1),
    ("Final Answer: The final answer is $45$. I hope it is correct.", "45", 1),
    ("**Final Answer**\n\n45", "45", 1),
    ("### Answer\n45", "45", 1),
    ("**Answer:** 45", "45", 1),
    (r"**Answer**: $\frac{1}{2}$", "0.5", 1),
    ("✅ Final Answer: **73**", "73", 1),
    ("The answer is `45`", "45", 1),
    ("Answer: 45 apples out of 200", "45", 1),
    ("The answer to 3+4 is 7.", "7", 1),
    ("The final answer is 7 because 3+4=7 and not 8", "7", 1),
    ("The answer is 72, in total, so the farmer earns that much.", "72", 1),
    ("The answer is 45, 3 more than 42.", "45", 1),
    ("The answers are 3, 5 and 7.", "3,5,7", 1),
    ("The answer is not 5; it is 6.", "6", 1),
    ("The answer is 45!", "45", 1),
    ("The answer is **45**!! Well done.", "45", 1),
    ("The answer is $5!$.", "120", 1),  # a factorial, since it stands in a formula
    ("The answer is 5! / 12.", "10", 1),
    ("So, the final answer is: 45 🎉", "45", 1),
    ("The answer is 7, i.e. 7.0.", "7", 1),
    (r"The answer is $\frac{3}{4}$ (0.75).", "3/4", 1),
    ("The answer is negative 9.", "-9", 1),
    ("The answer is negative 9.", "9", 0),
    ("The answer is less than 9.", "9", 0),
    ("The answer is between 5 and 9.", "9", 0),
    ("The answer is either 7 or 8.", "8", 0),
    ("The answer is 12 x 3 = 36.", "36", 1),
    ("The answer is 03:30 pm.", "3:30 PM", 1),
    ("The answer is 3:30 pm.", "3:30 am", 0),
    ("The answer is 3x + 2 because", "3x+2", 1),
    ("The answer is Tuesday, since 3 days pass.", "Tuesday", 1),
    ("The answer is not Tuesday but Monday.", "Tuesday", 0),
    ("The answer is June 20.", r"\text{June 20}", 1),
    ("The answer is 12.\n#### 13", "13", 1),
    ("#### 2. Solve it\nso 45", "45", 1),  # a heading
    ("答案：45", "45", 1),
    ("最终答案为45个。", "45", 1),
    ("答案是４５", "45", 1),
    ("Answer：45", "45", 1),
    ("Die Antwort lautet 42.", "42", 1),
    ("La respuesta es 45.", "45", 1),
    ("La réponse est : 45", "45", 1),
    ("Ответ: 45", "45", 1),
    ("الجواب هو ٤٥", "45", 1),
    ("उत्तर: ४५", "45", 1),
    ("정답은 45입니다.", "45", 1),
]
UNSTATED: list[Row] = [
    ("So she has 45 left out of the 200.", "45", 1),
    ("I get 45 (rather than 44).", "45", 1),
    ("(45)", "45", 1),
    ("She needs 45 more.\n\nLet me know if you need help with the other 2 problems!", "45", 1),
    ("So 3 + 4 = 7", "7", 1),
    ("He pays $3 for 5 apples", "5", 1),
    ("共有45个苹果", "45", 1),
    ("It could be 7 or 8.", "8", 0),
    ("The roots are 7 and 8.", "7, 8", 1),
    ("A probability of 3/4 or 75%.", "0.75", 1),
    ("The train leaves at 15:30.", "15:30", 1),
    ("The train leaves at 15:30.", "30", 0),
    ("The ratio is 3:4.", "6:8", 1),
    ("On 2020-05-06.", "6", 0),
    ("Call 555-1234.", "1234", 0),
    ("AZYUK2A", "2", 0),
    ("no idea", "3", 0),
    ("", "3", 0),
]
NUMBERS: list[Row] = [
    ("The answer is $9{,}500.", "9500", 1),
    (r"\boxed{12\,345}", "12345", 1),
    (r"\boxed{1{,}234{,}567}", "1234567", 1),
    (r"\boxed{\$16,\!386.20}", "16386.2", 1),
    (r"\boxed{12,34,567}", "1234567", 1),  # India
    (r"\boxed{1'234}", "1234", 1),  # Switzerland
    ("The answer is 1 234.", "1234", 1),
    ("The answer is 1\u202f234.", "1234", 1),
    ("The answer is 1.234,5 €", "1234.5", 1),
    ("The answer is US$ 1,234.50.", "1234.5", 1),
    ("The answer is £1,234", "1234", 1),
    ("The answer is 1234 USD", "1234", 1),
    (r"\boxed{1000,99}", "1000.99", 1),  # a decimal comma, where a decimal number is right
    (r"\boxed{1,2}", "12", 0),
    (r"\boxed{0,123}", "123", 0),
    (r"\boxed{(100,200)}", "(100, 200)", 1),
    (r"\boxed{[8.124,12.852]}", "[8.124, 12.852]", 1),
    ("The answer is −45", "-45", 1),
    ("The answer is –45", "-45", 1),
    ("The answer is 2½", "2.5", 1),
    ("The answer is 2 1/2.", "2.5", 1),
    (r"\boxed{2\frac{1}{2}}", "2.5", 1),
    ("1.5e3", "1500", 1),
    (r"\boxed{1.5\times 10^3}", "1500", 1),
    (r"\boxed{1.5 x 10^-3}", "0.0015", 1),
    ("The answer is 2 million", "2000000", 1),
    ("3万", "30000", 1),
    (r"\boxed{0.\overline{3}}", r"\frac13", 1),
    (r"\boxed{0.\dot{3}}", r"\frac13", 1),
    (r"\boxed{0.(3)}", r"\frac13", 1),
    ("The answer is 0.1666...", "1/6", 1),
    (r"\boxed{\approx 9}", "9", 1),
    ("It is 50%", "0.5", 1),
    (r"\boxed{\frac12 \text{ or } 0.5}", "0.5", 1),
    ("The answer is:\n\n- 45", "45", 1),
    ("It is 50 percent", "50", 1),
    (r"\boxed{5\%}", r"50\%", 0),
    ("28", "$0.28$", 0),
    (r"\boxed{12\text{ cm}^2}", "12", 1),
    (r"\boxed{5 \text{ meters}}", "5 m", 1),
    (r"\boxed{5\text{ km}}", r"5\text{ m}", 0),
    (r"\boxed{90°}", r"90^\circ", 1),
]
UNEQUAL: list[tuple[str, str]] = [  # math-verify 0.9 calls most of them equal
    (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}"),  # 1.37 and 0.63
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{3 \cdot 2^{2006}}", r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}"),  # 0 and 1/6, about
    ("10^{100}+1", "10^{100}"),
    (r"\sqrt{10^{100}+1}", "10^{50}"),  # they differ by 5e-51
    ("0.000001", "0.0000014"),
    ("0.33", r"\frac13"),
    ("1.414215", r"\sqrt{2}"),  # 1.41421356…
    (r"1, 3, 5, \ldots, 2n-1", r"1, 2, \ldots, n"),
    (r"1:4:9:\ldots", r"1:2:3:\ldots"),
    ("1011_2", "1011_3"),  # 11 and 31
    (r"4\sqrt(2)", "4"),
    ("(2,1)", "(1,2)"),
    ("[1,2]", "(1,2)"),
    (r"\{1,2\}", "(1,2)"),
    ("(0, 1.5)", "D = (0, 1)"),
    (r"(-\infty, 3]", "x<3"),
    ("x>3", "x<3"),
    (r"(0,1) \cup (2,4)", r"(0,1) \cup (2,3)"),
    ("n=1, 2, 3", "n=2, 3, 4"),
    ("1,1,2", "1,2,2"),
    ("1728", "1331 and 1728"),
    ("2021", r"\pm 2021"),
    ("1:00", "12:00"),
    ("3x-1y+13=0", "3x+4y+14=0"),
    ("11a+c", "7 = 11a+c"),
    ("0", "a + 3z = 0"),
    ("y=5", "x=5"),
    ("x", "y"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ("2:3", "3:2"),
    ("2020-05-06", "2009"),  # 2020 - 5 - 6
    ("05/06/2020", "06/05/2020"),
    (r"9 \pmod{7}", r"9 \pmod{11}"),
    ("]0, 1]", "[0, 1]"),
    (r"\text{odd}", r"\text{even}"),
]
EQUAL: list[tuple[str, str]] = [
    ("1.414214", r"\sqrt{2}"),  # six decimals of it
    ("0.333333", r"\frac13"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\frac{10\sqrt{10.5}}{27}", r"\frac{5\sqrt{42}}{27}"),  # sqrt(10.5) is sqrt(42) / 2
    ("4√2", r"4\sqrt{2}"),
    ("4*sqrt(2)", r"\sqrt{32}"),
    ("π/2", r"\frac{\pi}{2}"),
    (r"e^{i\pi}", "-1"),
    ("(1+i)^2", "2i"),
    (r"\log_2 8", "3"),
    (r"\binom{5}{2}", "5! / 12"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\tan^2(y)+1", r"\sec^2(y)"),
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"f(x)=x^2", "x^2"),
    ("x = 5+5+1 = 7 =11", "x = 11"),
    ("x = 3 or x = -1", "3, -1"),
    ("2, 1", "1, 2"),
    ("{-2021, 2021}", r"\pm 2021"),
    (r"1 \pm \sqrt{19}", r"\{1+\sqrt{19}, 1-\sqrt{19}\}"),
    (r"(2,3) \cup (0,1)", r"(0,1) \cup (2,3)"),
    (r"(-\infty, 3)", "x<3"),
    (r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}"),
    ("(0, 12.5)", "0 < x < 12.5"),
    ("-x > -1", "x < 1"),
    (r"y=-\frac{1}{2}x+\frac{3}{4}", "2x+4y-3=0"),
    ("-34x-45y+20z-100=0", "34x+45y-20z+100=0"),
    ("1011_{2}", "11"),
    ("1, 2, 3, ...", r"1, 2, 3, \ldots"),
    ("2:3", "4:6"),
    (r"5:30\text{ p.m.}", "5:30 p.m."),
    (
        r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]",
        r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}",
    ),
    (  # blanks after the end of a row, and its height
        r"\begin{pmatrix} 1 & 2 \\[2pt] 3 & 4 \end{pmatrix}",
        r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
    ),
    (r"n \equiv 9 \pmod{11}", "9"),
    (r"]-\infty, 3]", r"(-\infty, 3]"),
    ("[0; 1[", "[0, 1)"),
    (r"\mathbb{R}", r"(-\infty, \infty)"),
    (r"\emptyset", r"\{\}"),
    ("x > 3 or x < 1", r"(-\infty, 1) \cup (3, \infty)"),
    (r"2^{10^9}", r"2^{10^9}"),
    (r"\text{yes}", "Yes"),
]
CHOICES: list[tuple[str, str | None]] = [
    ("The correct answer is B. Option A is wrong because it is too large.", "B"),
    ("**Answer: B**\n\nExplanation: A would need two steps.", "B"),
    ("The answer is (B) vitamin C.", "B"),
    (r"\boxed{\text{(C) Hepatitis B}}", "C"),
    (r"\boxed{\textbf{(B)}\ 5}", "B"),
    ("The answer is B, not A.", "B"),
    ("Answer: B? No. Answer: C", "C"),
    ("The answer is not A. It is B.", "B"),
    ("The best answer is therefore D, A being false", "D"),
    ("B is the correct answer. A is not.", "B"),
    ("The correct option is B because A fails", "B"),
    ("I think A is wrong. It's B because D fails", "B"),
    ("I choose C.", "C"),
    ("B) Paris\nIt is in France, as A knows", "B"),
    ("Some text about D.\n\n**C**", "C"),
    ("<think>A</think><answer>B</answer>", "B"),
    ("<think>The answer is A", None),
    ("<answer>(C) Hepatitis A</answer>", "C"),
    ("A dog is a mammal, so B.", "B"),
    ("answer: (b)", "B"),
    ("b", "B"),
    ("b) Paris", "B"),
    ("The answer is b.", "B"),
    (r"\boxed{b}", "B"),
    ("the answer is 'B'", "B"),
    ("答案是Ｂ", "B"),
    ("B\n\nA is wrong", "B"),
    ("A: wrong\nB: right\nD: wrong\n\nSo it is B", "B"),
    ("A: wrong\nB: right", "B"),
    ("A is wrong.", None),
    ("The answer is not B.", None),
    ("It isn't B", None),
    ("e.g. this", None),
    ("The answer is a dog", None),
    ("The answer is A or B", None),  # two at a time
    ("A and B", None),
    ("答案是B。", "B"),
    ("因此选择 C。", "C"),
    ("答えはBです", "B"),
    ("Ответ: B", "B"),
]


def score(text: str, right: str, extract: str = "any") -> int:
    return int(perform({"text": text, "extract": extract, "choices": "ABCD", "right": [right]}))


def answer(text: str, extract: str = "any") -> Any:
    return perform({"text": text, "extract": extract, "choices": "ABCD", "find": True})


@pytest.mark.parametrize(
    "rows",
    [THOUGHTS, TAGS, BOXES, STATED, UNSTATED, NUMBERS],
    ids=["thoughts", "tags", "boxes", "stated", "unstated", "numbers"],
)
def test_the_answer_is_found_in_each_form(rows: list[Row]) -> None:
    wrong = [(text, right, expected) for text, right, expected in rows if score(text, right) != expected]
    assert wrong == []


def test_unequal_answers_score_zero_in_both_directions() -> None:
    pairs = [pair for one, two in UNEQUAL for pair in ((one, two), (two, one))]
    assert [pair for pair in pairs if score(rf"So \boxed{{{pair[0]}}}.", pair[1])] == []


def test_equal_answers_score_one_in_both_directions() -> None:
    pairs = [pair for one, two in EQUAL for pair in ((one, two), (two, one))]
    assert [pair for pair in pairs if not score(rf"So \boxed{{{pair[0]}}}.", pair[1])] == []


def test_a_choice_is_what_is_stated() -> None:
    assert [(text, answer(text, "choice")) for text, _ in CHOICES] == CHOICES


def test_the_last_number_of_a_list_is_its_last_element() -> None:
    assert score("The roots are 1,2", "2", "last_number") == 1
    assert score("It is 1,234.", "1234", "last_number") == 1


def test_words_are_a_vote_only_where_they_are_stated() -> None:
    texts = ("The answer is Tuesday.", "<answer>Tuesday</answer>", r"\boxed{Tuesday}", "no idea")
    assert [answer(text) for text in texts] == ["tuesday", "tuesday", "tuesday", None]
    assert answer(r"\boxed{2, 1}") == answer("The answers are 1 and 2.") == "1, 2"


@pytest.mark.parametrize("part", ["a ", "1,", "1 + ", "(", "7 or ", "<", "The answer is 4. "])
@pytest.mark.parametrize("extract", ["any", "choice"])
def test_a_text_of_one_repeated_part_costs_seconds_at_most(part: str, extract: str) -> None:
    start = time.process_time()
    score(part * 10_000, "7" if extract == "any" else "B", extract)
    assert time.process_time() - start < 5  # the parser took minutes


WORDS = st.text(st.sampled_from("ab 12.,$\\{}<>/=\n"), max_size=30)


@settings(deadline=None)
@given(thought=WORDS, answer=WORDS)
def test_what_a_thought_holds_changes_nothing(thought: str, answer: str) -> None:
    assert response_part(f"<think>{thought}</think>{answer}") == response_part(answer)
    assert response_part(f"{thought}</think>{answer}") == response_part(answer)
    assert response_part(f"<think>{thought}") is None


@settings(deadline=None)  # the parser's first call costs a second
@given(value=st.integers(-(10**12), 10**12))
def test_a_number_equals_itself_in_each_typography(value: int) -> None:
    grouped = f"{value:,}"
    for written in (str(value), grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\u202f")):
        assert score(f"The answer is {written}.", str(value)) == 1
        assert score(f"The answer is {written}.", str(value + 1)) == 0
