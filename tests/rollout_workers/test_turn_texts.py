"""Texts as pieces of tokens: joined, they are what the tokenizer would have made of the whole."""

from typing import Any

import pytest

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from rollout_workers.turn_texts import ChatTexts, PlainTexts, special_tokens
from tests.rollout_workers.test_episodes import KINDS, tokenizer

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETS_ANSWERS = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"


def chatting(template: str | None) -> Any:
    import copy

    its = copy.deepcopy(tokenizer("bytes"))
    its.add_special_tokens({"additional_special_tokens": ["<end>"]})
    its.chat_template = template
    return its


def test_a_chat_in_pieces_reads_as_the_template_writes_it() -> None:
    its = chatting(CHATML)
    texts = ChatTexts(Chat(its, ChatForm()))
    answer = texts.answer("go east")
    pieces = [
        texts.beginning("be brave"),
        texts.observation("a door"),
        answer,
        texts.closing(answer),
        texts.observation("a hall"),
    ]

    messages = [
        {"role": "system", "content": "be brave"},
        {"role": "user", "content": "a door"},
        {"role": "assistant", "content": "go east"},
        {"role": "user", "content": "a hall"},
    ]
    whole = its.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert its.decode([token for piece in pieces for token in piece]) == whole


def test_an_answer_that_was_cut_off_is_closed_whole() -> None:
    texts = ChatTexts(Chat(chatting(CHATML), ChatForm()))
    closing = texts.closing((30, 40))
    assert len(closing) == 2
    assert texts.closing((30, *closing[:1])) == closing[1:]
    assert texts.closing((30, *closing)) == ()


def test_earlier_calls_of_tools_are_read_where_the_template_has_no_place_for_them() -> None:
    """A talk that a program changed is laid out anew, with the calls in it."""
    its = chatting(CHATML)
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "now", "arguments": {}}}],
    }
    talk = [{"role": "user", "content": "When?"}, called, {"role": "tool", "content": "noon"}]
    read = its.decode(ChatTexts(Chat(its, ChatForm())).start("", "", talk))
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert f"When?<end>\n<|assistant|>{call}<end>\n" in read and "noon" in read


def test_templates_that_cannot_be_cut_into_turns_are_refused() -> None:
    with pytest.raises(InputError, match="can't be continued turn by turn"):
        ChatTexts(Chat(chatting(FORGETS_ANSWERS), ChatForm()))
    with pytest.raises(InputError, match="has no chat template"):
        Chat(chatting(None), ChatForm())


@pytest.mark.parametrize("kind", KINDS)
def test_plain_pieces_keep_the_special_tokens_at_the_ends_of_a_text(kind: str) -> None:
    its = tokenizer(kind)
    before, behind = special_tokens(its)
    texts = PlainTexts(its, "")
    assert list(texts.beginning("go east") + texts.ending) == its("go east")["input_ids"]
    assert (before, behind) == (((2,), ()) if kind == "pieces" else ((), ()))


def test_a_scripted_answer_ends_as_the_models_would() -> None:
    its = tokenizer("words")
    assert its.decode(PlainTexts(its, "<EOU>").answer("go")) == "go <EOU>"
    assert its.decode(PlainTexts(its, "").answer("go")) == "go <eos>"
    assert its.decode(PlainTexts(its, "\n").answer("go")) == "go <eos>"  # it has no token for a line break
