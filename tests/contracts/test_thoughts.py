"""Responses without their thoughts in published models' marks, and templates that open a thought."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.conversations.chat import ASKED, Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.thoughts import behind_thought, opening_mark
from contracts.scores import Sample
from tests.chat_templates import chat_tokenizer

FOLDER = Path(__file__).parents[2].parent / "shared" / "templates"
MARKS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<Thought>", "</Thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
PLAIN = st.text(st.sampled_from("abc 12\n.<>[]|/"), max_size=20)


@pytest.mark.parametrize(("opens", "closes"), MARKS)
@given(thought=PLAIN, answer=PLAIN)
def test_a_thought_goes_with_its_marks(opens: str, closes: str, thought: str, answer: str) -> None:
    assert behind_thought(f"{opens}\n{thought}{closes}{answer}") == answer
    assert behind_thought(f"\n{thought}{closes}{answer}") == answer  # the template opened it
    assert behind_thought(f"{opens}\n{thought}") is None
    assert behind_thought(f"\n{thought}", opened=True) is None


@given(PLAIN)
def test_a_text_without_marks_stays_as_it_is(text: str) -> None:
    assert behind_thought(text) == text


def test_all_thoughts_go_and_what_is_said_between_them_stays() -> None:
    assert behind_thought("a<think>1</think>b<think>2</think>c") == "abc"
    assert behind_thought("<think>1<think>2</think>3</think>b") == "b"
    assert behind_thought("a<think>1</think>b<think>2") is None


def test_a_program_may_speak_of_marks() -> None:
    program = "print(text.split('</think>')[-1], \"<think>\")"
    assert behind_thought(f"<think>Split.</think>{program}") == program


def test_words_close_a_thought_only_where_they_open_one() -> None:
    letter = "Dear Sir: Here is my response: no."
    assert behind_thought(letter) == letter
    assert behind_thought("analysis of variance: 4") == "analysis of variance: 4"


def test_the_prompt_s_end_tells_whether_a_text_begins_in_a_thought() -> None:
    assert [opening_mark(end) for end in ("Q<think>\n", "Q[THINK]", "Q", "<think>\n\n</think>\n")] == [
        "<think>",
        "[THINK]",
        None,
        None,
    ]
    assert Sample("4", prompt="2 + 2? <think>").response == "<think>4"
    assert Sample("4", prompt="2 + 2? <think>", opened="").response == "4"
    assert Sample("4", opened="<think>").response == "<think>4"
    assert Sample("<think>4</think>4", opened="<think>").response == "<think>4</think>4"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the real templates are not on this machine")
@pytest.mark.parametrize(
    ("name", "thinks", "mark"),
    [
        ("deepseek_r1_distill", False, "<think>"),
        ("Qwen-QwQ-32B", True, "<think>"),
        ("Qwen-QwQ-32B", False, None),  # an empty thought
        ("Qwen3.5-4B", False, "<think>"),
        ("MiniMax-M2", False, "<think>"),
        ("Qwen-Qwen2.5-7B-Instruct", True, None),
        ("openai-gpt-oss-120b", True, None),
    ],
)
def test_real_templates_open_the_thoughts_that_they_are_known_to_open(
    name: str, thinks: bool, mark: str | None
) -> None:
    tokenizer = chat_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    form = ChatForm(options={"enable_thinking": True} if thinks else {})
    assert opening_mark(Chat(tokenizer, form).text([ASKED])) == mark
