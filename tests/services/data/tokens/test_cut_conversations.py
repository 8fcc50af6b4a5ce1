"""Conversations that are too long: text goes, marks stay."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Side
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import PromptTokens
from tests.chat_templates import TEMPLATES, chat_tokenizer

ITS = chat_tokenizer(TEMPLATES["default_system"])
CHAT = Chat(ITS, ChatForm())
FRAME = len(CHAT.tokens([{"role": "user", "content": ""}]))


def read(prompt: Prompt, most: int, side: Side) -> str:
    to_tokens = PromptTokens(ITS, PromptLimit(most, side), CHAT)
    tokens = to_tokens(prompt)
    assert len(tokens) <= most
    assert to_tokens.cuts(prompt) == (to_tokens.length(prompt) > most)
    return to_tokens.text(tokens)


@pytest.mark.parametrize(("side", "kept"), [("left", "56789"), ("right", "01234")])
def test_a_question_loses_text_on_the_limits_side(side: Side, kept: str) -> None:
    text = read(Prompt("0", "0123456789"), FRAME + 5, side)
    assert text == CHAT.text([{"role": "user", "content": kept}])


def test_the_oldest_messages_go_first_but_the_systems() -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    prompt = Prompt("0", "", meta={"messages": talk})
    # "three" is four tokens: th r e e
    whole, shorter = len(CHAT.tokens(talk)), CHAT.tokens([talk[0], talk[3]])
    assert read(prompt, whole, "left") == CHAT.text(talk)
    assert read(prompt, whole - 1, "left") == CHAT.text([talk[0], talk[3]])
    assert read(prompt, len(shorter) - 2, "left") == CHAT.text([talk[0], {**talk[3], "content": "ee"}])
    assert read(prompt, whole - 2, "right") == CHAT.text([*talk[:3], {**talk[3], "content": "thr"}])


def test_marks_that_leave_no_room_are_refused() -> None:
    with pytest.raises(InputError, match=rf"prompt 0: .* take {FRAME} tokens, .*max_prompt_tokens={FRAME}"):
        read(Prompt("0", "0123456789"), FRAME, "left")


@settings(max_examples=50, deadline=None)
@given(
    text=st.text("thinou ab\n🙂é", min_size=1, max_size=60),
    room=st.integers(4, 30),
    side=st.sampled_from(["left", "right"]),
)
def test_a_cut_question_is_a_part_of_it_and_fills_the_room(text: str, room: int, side: Any) -> None:
    as_read = read(Prompt("0", text), FRAME + room, side)
    kept = as_read.removeprefix(
        CHAT.text([{"role": "user", "content": ""}]).partition("<|stop|>\n<|start|>assistant")[0]
    )
    kept = kept.removesuffix("<|stop|>\n<|start|>assistant\n")
    assert text.endswith(kept) if side == "left" else text.startswith(kept)
    assert "".join(CHAT.pieces(text)) == text
    if kept != text:  # one more token would not fit, whose bytes may belong to one letter
        assert len(CHAT.encode(kept)) > room - 4
