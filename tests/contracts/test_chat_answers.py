"""Answers after their prompts in chat templates: thoughts, calls, ends and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies import templates
from benchmarks.studies.templates import (
    ANSWER,
    ASKED,
    CALLS,
    EQUAL,
    INSIDE,
    NEXT,
    PLAIN,
    REASONS,
    RESULT,
    THINKS,
)
from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import RESPONSE, conversation, spoken
from contracts.errors import InputError
from contracts.rollout import Prompt

SHARED = Path(__file__).parents[3] / "shared"
OPEN, CLOSE = "<|start|>{{ m.role }}\n", "<|im_end|>\n"
ASKS = "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
CALL_AS_JSON = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
)
# Contents as they are: the thought in a content too, no field for reasoning, no place for calls.
VERBATIM = f"{{% for m in messages %}}{OPEN}{{{{ m.content }}}}{CLOSE}{{% endfor %}}{ASKS}"
# The thought is taken out of the content, and an answer without one gets an empty one; Qwen3's way.
SPLITS = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set thought = m.reasoning_content or '' %}{% set said = m.content or '' %}"
    "{% if '</think>' in said %}{% set thought = said.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set said = said.split('</think>')[-1].strip() %}{% endif %}"
    f"<think>\n{{{{ thought }}}}\n</think>\n\n{{{{ said }}}}{CALL_AS_JSON}"
    f"{{% else %}}{{{{ m.content }}}}{{% endif %}}{CLOSE}{{% endfor %}}{ASKS}"
)
# The prompt opens the thought, and thoughts are dropped from answers; calls only where the content is null.
OPENS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant\n"
    "{% if m.content is none %}{% for c in m.tool_calls %}<call>{{ c.function.name + c.function.arguments }}"
    "</call>{% endfor %}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>\n"
    f"{{% else %}}{OPEN}{{{{ m.content }}}}{CLOSE}{{% endif %}}{{% endfor %}}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>\n{% endif %}"
)
# An empty thought at the prompt's end, unless an option lets the model think.
QUICK = (
    f"{{% for m in messages %}}{OPEN}{{{{ m.content }}}}{CLOSE}{{% endfor %}}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>\n"
    "{{ '' if thinking else '</think>' }}{% endif %}"
)
# A field of another name, and marks of its own.
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.thinking %}<|channel|>analysis\n{{ m.thinking }}<|end|>{% endif %}"
    f"<|final|>\n{{{{ m.content }}}}{CLOSE}{{% endfor %}}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
BLOCKS = (
    f"{{% for m in messages %}}{OPEN}{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}"
    "{% for b in m.content %}{{ '[THINK]' + b.thinking + '[/THINK]' if b.type == 'thinking' else b.text }}"
    f"{{% endfor %}}{{% endif %}}{CLOSE}{{% endfor %}}{ASKS}"
)
# The mark after an answer is written before the next message alone.
LAZY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|said|>{{ m.content }}{% else %}"
    "{% if not loop.first %}<|im_end|>{% endif %}<|asked|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|said|>{% endif %}"
)
# No mark: the model draws the next message's.
DRAWS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|said|>\n{{ m.content or '' }}"
    f"{CALL_AS_JSON}{{% elif m.role == 'tool' %}}<|observation|>{{{{ m.content }}}}"
    "{% else %}<|user|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|said|>{% endif %}"
)
# A result and instructions have other roles' names; all else is dropped without a word.
OTHER_ROLES = (
    f"{{% for m in messages %}}{{% if m.role in ('system', 'user') %}}{OPEN}{{{{ m.content }}}}{CLOSE}"
    f"{{% elif m.role == 'ipython' %}}{OPEN}{{{{ m.content }}}}{CLOSE}{{% elif m.role == 'assistant' %}}"
    f"{OPEN}{{{{ m.content or '' }}}}{CALL_AS_JSON}{CLOSE}{{% endif %}}{{% endfor %}}{ASKS}"
)
TEMPLATES = {
    "verbatim": VERBATIM,
    "splits": SPLITS,
    "opens": OPENS,
    "quick": QUICK,
    "channels": CHANNELS,
    "blocks": BLOCKS,
    "lazy": LAZY,
    "GLM draws": DRAWS,
    "other roles": OTHER_ROLES,
}
REFUSED = "refused"
EXPECTED = {  # by hand: plain, thought, reasoning, a call, after a result
    "verbatim": (EQUAL, EQUAL, REFUSED, REFUSED, REFUSED),
    "splits": (EQUAL, EQUAL, EQUAL, EQUAL, EQUAL),
    "opens": (REFUSED, INSIDE, INSIDE, REFUSED, REFUSED),
    "quick": ("no thought", REFUSED, REFUSED, REFUSED, REFUSED),
    "channels": (EQUAL, EQUAL, EQUAL, REFUSED, REFUSED),
    "blocks": (EQUAL, EQUAL, EQUAL, REFUSED, REFUSED),
    "lazy": (EQUAL, EQUAL, REFUSED, REFUSED, REFUSED),
    "GLM draws": (EQUAL, EQUAL, REFUSED, EQUAL, EQUAL),
    "other roles": (EQUAL, EQUAL, REFUSED, EQUAL, "prompt differs"),
}


def model(name: str) -> templates.Model:
    return templates.model_of(name, TEMPLATES[name])


def prompt(*messages: dict[str, Any], **meta: Any) -> Prompt:
    return Prompt("7", "", meta={"messages": list(messages), **meta})


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"other roles"}))
def test_each_kind_of_answer_is_as_the_template_writes_it_or_refused(name: str) -> None:
    outcomes = [templates.outcome(model(name), *talk).partition(":")[0] for talk in templates.TALKS.values()]
    assert tuple(outcomes) == EXPECTED[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_second_turn_follows_with_the_end_once(name: str) -> None:
    assert templates.turns(model(name)) == EQUAL


def test_the_answer_to_a_prompt_that_opens_its_thought_has_one_thought() -> None:
    its = model("opens")
    read = its.chat().of_prompt(prompt(ASKED))
    for message in (THINKS, REASONS):
        tokens = its.chat().answer_to(prompt(ASKED, **{RESPONSE: message}), spoken(message))
        whole = "<think>\nThree and four make seven.\n</think>\n\nIt is seven.<|im_end|>"
        assert its.tokenizer.decode(read + tokens).endswith(f"<|start|>assistant\n{whole}")
    with pytest.raises(InputError, match=r"response to prompt 7: the prompt ends in '<think>', .*has none"):
        its.chat().answer_to(prompt(ASKED), ANSWER)


def test_a_refusal_names_the_option_that_helps() -> None:
    its = model("quick")
    with pytest.raises(InputError, match=r"empty thought, .*: model\.chat\.options\.thinking=true lets"):
        its.chat().answer_to(prompt(ASKED), THINKS["content"])
    thinks = Chat(its.tokenizer, ChatForm(ends=its.stops, options={"thinking": True}))
    text = its.tokenizer.decode(thinks.answer_to(prompt(ASKED), THINKS["content"]))
    assert text == "Three and four make seven.\n</think>\n\nIt is seven.<|im_end|>"


def test_reasoning_without_a_place_is_refused_in_prompts_and_answers() -> None:
    chat = model("verbatim").chat()
    for messages, message in (((ASKED,), REASONS), ((ASKED, REASONS, NEXT), PLAIN)):
        with pytest.raises(InputError, match="prompt 7: message 2 has 'reasoning_content', for which"):
            chat.of_prompt(prompt(*messages))
            chat.answer_to(prompt(*messages, **{RESPONSE: message}), spoken(message))


def test_a_message_that_the_template_leaves_out_is_named() -> None:
    chat = model("other roles").chat()
    with pytest.raises(InputError, match=r"prompt 7: the chat template leaves out message 2 \(critic\)"):
        chat.of_prompt(prompt(ASKED, {"role": "critic", "content": "No."}))
    with pytest.raises(InputError, match=r"leaves out the tool calls in message 2 \(assistant\)"):
        model("opens").chat().of_prompt(prompt(ASKED, {**CALLS, "content": "Let me look."}, RESULT))


def test_roles_of_the_same_meaning_are_translated_where_the_template_knows_another_name() -> None:
    its = model("other roles")
    read = its.tokenizer.decode(
        its.chat().of_prompt(prompt({"role": "developer", "content": "Be brief."}, ASKED, CALLS, RESULT))
    )
    assert read.startswith("<|start|>system\nBe brief.<|im_end|>\n")
    assert "<|start|>ipython\n21 degrees<|im_end|>\n" in read


@pytest.mark.parametrize("arguments", ['{"city":"Rome"}', {"city": "Rome"}])
def test_arguments_have_the_form_that_the_template_takes(arguments: Any) -> None:
    """As the data has them where the template takes both; never a text of a text, nor a mapping of Python."""
    call = {**CALLS["tool_calls"][0], "function": {"name": "get_weather", "arguments": arguments}}
    talk = prompt(ASKED, {**CALLS, "tool_calls": [call]}, RESULT)
    shown = {
        name: model(name).tokenizer.decode(model(name).chat().of_prompt(talk)) for name in ("opens", "splits")
    }
    text = arguments if isinstance(arguments, str) else '{"city": "Rome"}'
    assert f"<call>get_weather{text}</call>" in shown["opens"]
    assert '<call>get_weather{"city": "Rome"}</call>' in shown["splits"]


def test_an_answer_ends_with_the_mark_at_which_the_model_stops() -> None:
    its = model("GLM draws")  # its stops are <|endoftext|>, <|user|>, <|observation|>
    words = its.tokenizer.convert_ids_to_tokens
    assert words([its.chat().answer(ANSWER)[-1]]) == ["<|user|>"]
    called = its.chat().answer_to(prompt(ASKED, **{RESPONSE: CALLS}), spoken(CALLS))
    assert words([called[-1]]) == ["<|observation|>"]
    alone = Chat(its.tokenizer, ChatForm())  # its end token is all that is known
    assert words([alone.answer(ANSWER)[-1]]) == ["<|endoftext|>"]


def test_a_mark_that_the_model_drew_is_not_read_twice() -> None:
    its = model("GLM draws")
    chat, ids = its.chat(), its.tokenizer.convert_tokens_to_ids
    turn = chat.turn([NEXT])
    drawn = (*chat.encode("7"), ids("<|user|>"))
    assert its.tokenizer.decode(drawn + chat.following(drawn, turn)).startswith("7<|user|>\nAnd then ?")
    other = (*chat.encode("7"), ids("<|observation|>"))  # the record keeps what was drawn
    assert its.tokenizer.decode(chat.following(other, turn)).startswith("<|user|>\nAnd then ?")


def published() -> list[Path]:
    return sorted((SHARED / "templates").glob("*.jinja"))


@pytest.mark.parametrize("file", published(), ids=lambda file: file.stem)
def test_published_templates_write_what_transformers_renders(file: Path) -> None:
    row = templates.row(templates.model_of(file.stem, file.read_text(encoding="utf-8")))
    assert not {cell for cell in row.values() if ":" not in cell} - {*templates.OUTCOMES, row["end"]}
    assert row["end"].startswith("`")


REAL = [
    ("qwen2", "Qwen-Qwen2.5-7B-Instruct", ("<|im_end|>",)),
    ("qwen2", "Qwen-Qwen3-0.6B", ("<|im_end|>",)),
    ("phi-3", "microsoft-Phi-3.5-mini-instruct", ("<|end|>",)),
]


@pytest.mark.skipif(not published(), reason="there is no folder of real tokenizers beside the repository")
@pytest.mark.parametrize(("folder", "template", "stops"), REAL)
@pytest.mark.parametrize("answer", [PLAIN, THINKS, {"role": "assistant", "content": "1. é — 7\n\n- x"}])
def test_real_tokenizers_give_the_tokens_of_the_whole_text(
    folder: str, template: str, stops: tuple[str, ...], answer: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer

    its = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / folder)
    its.chat_template = (SHARED / f"templates/{template}.jinja").read_text(encoding="utf-8")
    chat = Chat(its, ChatForm(ends=tuple(its.convert_tokens_to_ids(list(stops)))))
    whole = its.apply_chat_template([ASKED, answer], tokenize=True, return_dict=False)
    read, written = chat.of_prompt(prompt(ASKED)), chat.answer_to(prompt(ASKED), answer["content"])
    assert read == tuple(
        its.apply_chat_template([ASKED], tokenize=True, add_generation_prompt=True, return_dict=False)
    )
    assert read + written == tuple(whole[: len(read + written)])
    assert its.convert_ids_to_tokens(written[-1]) == stops[0]
    assert not its.decode(whole[len(read + written) :], skip_special_tokens=True).strip()
    later = its.apply_chat_template(
        [ASKED, answer, NEXT], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    if tuple(later[: len(read + written)]) == read + written:  # the template keeps what it wrote before
        assert written + chat.following(written, chat.turn([NEXT])) == tuple(later[len(read) :])


def test_calls_of_other_formats_become_an_assistants() -> None:
    call = json.dumps({"name": "get_weather", "arguments": {"city": "Rome"}})
    for names in (("from", "value"), ("role", "content")):
        for role, result in (("function_call", "observation"), ("tool_call", "tool_response")):
            talk = [
                dict(zip(names, pair, strict=True))
                for pair in (("user", "Rome?"), (role, call), (result, "21"), ("assistant", "21 degrees."))
            ]
            question, called, tool_reply, answer = conversation(talk, "here")
            function = {"name": "get_weather", "arguments": {"city": "Rome"}}
            assert called["tool_calls"] == [{"id": "call00001", "type": "function", "function": function}]
            assert (called["role"], called["content"]) == ("assistant", None)
            assert (tool_reply["role"], tool_reply["tool_call_id"], tool_reply["name"]) == (
                "tool",
                "call00001",
                "get_weather",
            )
            assert (question["role"], answer["content"]) == ("user", "21 degrees.")


def test_a_call_behind_an_assistants_words_or_another_call_is_one_turn() -> None:
    words = {"from": "gpt", "value": "Let me look."}
    calls = [{"from": "function_call", "value": json.dumps({"name": name, "arguments": {}})} for name in "ab"]
    (turn,) = conversation([words, *calls], "here")
    assert turn["content"] == "Let me look."
    assert [(call["id"], call["function"]["name"]) for call in turn["tool_calls"]] == [
        ("call00001", "a"),
        ("call00002", "b"),
    ]
    thought = {"from": "function_call", "value": f"<think>\nHm.\n</think>\n\n{calls[0]['value']}"}
    assert conversation([thought], "here")[0]["content"] == "<think>\nHm.\n</think>"
    with pytest.raises(InputError, match="here, message 1: expected a call such as"):
        conversation([{"from": "function_call", "value": "get_weather(Rome)"}], "here")
    (older,) = conversation([{"role": "assistant", "content": None, "function_call": {"name": "a"}}], "here")
    assert older["tool_calls"] == [{"type": "function", "function": {"name": "a", "arguments": {}}}]


def test_a_flat_call_keeps_its_id_and_has_its_arguments_once() -> None:
    """OpenAI has `id` and `type` beside `function`; `parameters` is another name of `arguments`."""
    flat = {"id": "abc", "type": "function", "name": "f", "parameters": {"a": 1}}
    nested = {"id": "abc", "function": {"name": "f", "parameters": {"a": 1}}}
    call = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    for written in (flat, nested):
        message = {"role": "assistant", "content": None, "tool_calls": [written]}
        assert conversation([message], "here")[0]["tool_calls"] == [call]
    assert flat["parameters"] == {"a": 1}  # the row stays as it was


def test_nulls_that_no_table_added_stay_in_arguments() -> None:
    call = {"name": "f", "arguments": {"a": None, "b": [{"c": None}]}}
    message = {"role": "assistant", "tool_calls": [{"function": call}]}
    (kept,) = conversation([message], "here", keeps_nulls=True)
    assert kept["tool_calls"][0]["function"] == call
    (of_a_table,) = conversation([message], "here")
    assert of_a_table["tool_calls"][0]["function"]["arguments"] == {"b": [{}]}
    (of_text,) = conversation([{"role": "function_call", "content": json.dumps(call)}], "here")
    assert of_text["tool_calls"][0]["function"] == call


@pytest.mark.parametrize("count", [2000, 10**5])
def test_a_call_that_is_nested_too_deeply_is_refused(count: int) -> None:
    lists = "[" * count + "]" * count
    for text in ("[" * count, lists):
        with pytest.raises(InputError, match="here"):
            conversation([{"role": "function_call", "content": text}], "here")


def test_an_empty_list_of_calls_beside_a_null_is_an_empty_answer() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert conversation([message], "here") == [{"role": "assistant", "content": ""}]
    with pytest.raises(InputError, match="expected a text under 'content'"):
        conversation([{"role": "assistant", "content": None}], "here")


@pytest.mark.parametrize("name", ["human", "Human", "prompter", "USER"])
def test_users_have_many_names(name: str) -> None:
    assert conversation([{"from": name, "value": "Hi!"}], "here") == [{"role": "user", "content": "Hi!"}]


def test_a_message_has_one_thought() -> None:
    both = {**THINKS, "reasoning_content": "Three and four make seven."}
    assert conversation([both], "here") == [THINKS]
    with pytest.raises(InputError, match="message 1: reasoning_content and the thought in content differ"):
        conversation([{**THINKS, "reasoning_content": "Seven is lucky."}], "here")
    assert conversation([{**PLAIN, "reasoning_content": " ", "thinking": None}], "here") == [PLAIN]
