"""Conversations read as transformers' own `apply_chat_template` writes them, and turns in pieces."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.rollout import Prompt
from tests.chat_templates import (
    DATED,
    ENDS_OTHERWISE,
    STRIPS_REASONING,
    TEMPLATES,
    TEXTS,
    THINKS_BY_OPTION,
    chat_tokenizer,
)

SYSTEM = {"role": "system", "content": "Be brief."}
ONE = [{"role": "user", "content": "What is three and four ?"}]
THREE = [
    *ONE,
    {"role": "assistant", "content": "It is seven."},
    {"role": "user", "content": "And then ?"},
    {"role": "assistant", "content": "Nothing."},
    {"role": "user", "content": "Thanks, that is the end"},
]


def expected(its: Any, talk: list[dict[str, str]], **options: Any) -> tuple[int, ...]:
    tokens = its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False, **options)
    return tuple(tokens)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("talk", [ONE, THREE], ids=["one", "three"])
def test_a_conversation_reads_as_the_template_writes_it(name: str, talk: list[dict[str, str]]) -> None:
    its = chat_tokenizer(TEXTS[name])
    tokens = Chat(its, ChatForm()).tokens(talk)
    assert tokens == expected(its, talk)
    assert tokens.count(its.bos_token_id) == ("bos_token" in TEXTS[name])  # the tokenizer would add one, too


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {"refuses_system", "gemma"}))
def test_a_system_message_is_put_in_front_once(name: str) -> None:
    its = chat_tokenizer(TEXTS[name])
    chat = Chat(its, ChatForm(system="Be brief."))
    assert chat.tokens(ONE) == chat.tokens([SYSTEM, *ONE]) == expected(its, [SYSTEM, *ONE])


def test_options_and_a_template_of_ones_own_are_used() -> None:
    its = chat_tokenizer(STRIPS_REASONING)
    silent = Chat(its, ChatForm(options={"enable_thinking": False}))
    assert silent.tokens(THREE) == expected(its, THREE, enable_thinking=False)
    assert silent.text(ONE).endswith("<think>\n\n</think>\n\n")
    smol = chat_tokenizer(THINKS_BY_OPTION)
    quick = Chat(smol, ChatForm(options={"enable_thinking": False}))
    assert quick.tokens(THREE) == expected(smol, THREE, enable_thinking=False)
    answered = quick.tokens(ONE) + quick.answer("It is seven.")
    assert smol.decode(answered + quick.closing(answered) + quick.turn([THREE[2]])) == quick.text(THREE[:3])
    chat = Chat(its, ChatForm(template="{{ messages[0].content }}!"))
    assert chat.text(ONE) == "What is three and four ?!"


@pytest.mark.parametrize("name", ["refuses_system", "gemma"])
def test_a_template_that_takes_no_system_message_says_so(name: str) -> None:
    if name not in TEXTS:
        pytest.skip("trl's copy of the text is not installed")
    with pytest.raises(InputError, match=r"System role not supported\. .*leave out model\.chat\.sys"):
        Chat(chat_tokenizer(TEXTS[name]), ChatForm(system="Be brief."))
    with pytest.raises(InputError, match=r"prompt 7: .*System role not supported\. .*those of the data"):
        Chat(chat_tokenizer(TEXTS[name]), ChatForm()).of_prompt(
            Prompt("7", "", meta={"messages": [SYSTEM, *ONE]})
        )


def test_a_template_that_needs_a_system_message_says_what_to_give() -> None:
    its = chat_tokenizer(
        "{% if messages[0].role != 'system' %}{{ raise_exception('Who am I?') }}{% endif %}ok"
    )
    with pytest.raises(InputError, match=r"prompt 7: .*Who am I\?\. .*set model\.chat\.system=TEXT"):
        Chat(its, ChatForm()).of_prompt(Prompt("7", "Hi!"))
    assert Chat(its, ChatForm(system="Be brief.")).text(ONE) == "ok"


def test_a_template_that_leaves_out_the_system_message_is_refused() -> None:
    users = "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"
    with pytest.raises(InputError, match="this chat template leaves out system messages"):
        Chat(chat_tokenizer(users), ChatForm(system="Be brief."))


def test_roles_that_must_alternate_are_told() -> None:
    chat = Chat(chat_tokenizer(TEMPLATES["refuses_system"]), ChatForm())
    with pytest.raises(InputError, match=r"conversation of user, user: Roles must alternate"):
        chat.tokens([*ONE, *ONE])


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_turns_in_pieces_are_the_conversation_in_one(name: str) -> None:
    """Answers that end as the template ends them: joined, the pieces are what the template writes."""
    its = chat_tokenizer(TEXTS[name])
    chat = Chat(its, ChatForm())
    opening = "<|channel|>final<|message|>" if "<|channel|>" in TEXTS[name] else ""
    tokens = chat.tokens(ONE)
    for answer, question in ((THREE[1], THREE[2]), (THREE[3], THREE[4])):
        drawn = chat.encode(opening + answer["content"]) + chat.encode(chat._ends.closing)[:1]
        tokens += drawn + chat.closing(drawn) + chat.turn([question])
    whole = chat.text(THREE)
    if whole.startswith(chat.text(ONE) + opening + THREE[1]["content"]):
        assert tokens == expected(its, THREE)
    else:  # the template writes an answer's beginning anew once another follows, and the record keeps it
        behind = whole.rpartition(THREE[3]["content"])[2]
        assert its.decode(tokens).endswith(THREE[3]["content"] + behind)
        assert its.decode(tokens).startswith(chat.text(ONE))


def test_an_answer_that_ended_for_good_is_not_ended_twice() -> None:
    """Where nothing follows, the template ends with <|return|>; where something does, with <|end|>."""
    its = chat_tokenizer(ENDS_OTHERWISE)
    chat = Chat(its, ChatForm())
    drawn = chat.answer("Seven")
    assert its.decode(drawn) == "<|channel|>final<|message|>Seven<|return|>"
    assert chat.closing(drawn) == ()
    assert its.decode(chat.closing(chat.encode("Sev"))) == "<|end|>"  # it hit its limit
    assert its.decode(chat.turn(ONE)).startswith("<|start|>user<|message|>What")


def test_channels_become_thinking_and_content() -> None:
    its = chat_tokenizer(ENDS_OTHERWISE)
    chat = Chat(its, ChatForm())
    text = (
        "<|channel|>analysis<|message|>3 + 4<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>"
    )
    assert chat.message(chat.encode(text)) == {"role": "assistant", "content": "7", "thinking": "3 + 4"}
    plain = Chat(chat_tokenizer(STRIPS_REASONING), ChatForm())
    text = "<think>\n3 + 4\n</think>\n\n7"
    assert plain.message(plain.encode(text + "<|stop|>")) == {"role": "assistant", "content": text}


def test_an_answer_is_written_as_the_template_writes_the_last_one() -> None:
    for name in ("default_system", "merges_system", "strips_reasoning", "ends_otherwise", "dated"):
        its = chat_tokenizer(TEMPLATES[name])
        chat = Chat(its, ChatForm())
        whole = its.apply_chat_template([*ONE, THREE[1]], tokenize=False)
        assert whole.rstrip("\n") == its.decode(chat.tokens(ONE) + chat.answer("It is seven."))


def test_a_date_stays_as_it_was_asked_for() -> None:
    chat = Chat(chat_tokenizer(DATED), ChatSettings(date="2024-07-26").form())
    assert "Today: 26 Jul 2024" in chat.text(ONE) and not chat.changes_daily
    today = Chat(chat_tokenizer(DATED), ChatForm())
    assert f"Today: {date.today():%d %b %Y}" in today.text(ONE) and today.changes_daily
    fixed = Chat(chat_tokenizer(DATED), ChatForm(options={"date_string": "long ago"}))
    assert "Today: long ago" in fixed.text(ONE) and not fixed.changes_daily


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"template": "none", "system": "Be brief."}, "template=none with system"),
        ({"options": {"messages": []}}, "'messages' is set by the run itself"),
        ({"date": "yesterday"}, "yesterday"),
    ):
        with pytest.raises(ValueError, match=message):
            ChatSettings.model_validate(options)
    with pytest.raises(InputError, match="can't be read: No such file"):
        ChatSettings(template=str(tmp_path / "none.jinja")).form()
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}")
    settings = ChatSettings(template=str(tmp_path / "own.jinja"))
    assert settings.form().template == settings.with_text().form().template == "{{ messages[0].content }}"
