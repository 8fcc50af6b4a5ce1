"""Tool calls in a model's answer: found where they are, and never an exception, whatever was written."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from rollout_workers.tools.tool_calls import (
    CLOSES,
    OPENS,
    Call,
    Malformed,
    Parsed,
    as_text,
    hermes,
    of_text,
    parser_of,
    written,
)
from tests.chat_templates import chat_tokenizer

CALL = '{"name": "add", "arguments": {"a": 1}}'


def deep(count: int) -> str:
    """Return a call whose argument is a list in a list, and so on."""
    return f'{{"name": "add", "arguments": {{"a": {"[" * count}{"]" * count}}}}}'


names = st.text(min_size=1, max_size=12)
marks = st.sampled_from((OPENS, CLOSES, "<think>", "</think>", "\n", '"', "{", "}", CALL))
texts = st.lists(marks | st.text(max_size=6), max_size=8).map("".join)
numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.builds(Call, names, st.dictionaries(texts, values, max_size=4)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(calls, st.sampled_from(("", "Let me see.", "<think>6 or <tool_call>?</think>Well.")))
def test_what_is_written_is_found_again(wanted: list[Call], before: str) -> None:
    """Whatever arguments hold: marks of calls and of thoughts, quotes, lines."""
    thoughts = any("think>" in json.dumps(call.arguments) + call.name for call in wanted)
    parsed = hermes(before + written(wanted))
    if not thoughts:  # a mark of thoughts in an argument would hide what stands before it
        assert list(parsed.calls) == wanted
        assert parsed.content == before


@given(texts)
def test_any_text_is_parsed_and_travels(text: str) -> None:
    parsed = hermes(text)
    assert of_text(as_text(parsed)) == parsed
    if OPENS not in text:
        assert parsed == Parsed(text.strip())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{OPENS}{CALL}{CLOSES}{OPENS}{CALL}{CLOSES}", (Call("add", {"a": 1}),) * 2),
        (f"{OPENS}\n{CALL}", (Call("add", {"a": 1}),)),  # cut off after its JSON
        (f"{OPENS}{CALL}{OPENS}{CALL}{CLOSES}", (Call("add", {"a": 1}),) * 2),
        (f"<think>{OPENS}{CALL}{CLOSES}</think>No.", ()),
        (f"<think>{OPENS}{CALL}{CLOSES}", ()),  # the thought was cut off
        (f'{OPENS}{{"name": "now"}}{CLOSES}', (Call("now", {}),)),
        (f'{OPENS}{{"name": "add", "arguments": "{{\\"a\\": 1}}"}}{CLOSES}', (Call("add", {"a": 1}),)),
        (f'{OPENS}{{"name": "run", "arguments": {{"code": "a\nb"}}}}', (Call("run", {"code": "a\nb"}),)),
        ("The answer is 42.", ()),
    ],
)
def test_calls_by_hand(text: str, wanted: tuple[Call, ...]) -> None:
    assert hermes(text).calls == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{OPENS}add(1){CLOSES}", "no JSON"),
        (f'{OPENS}{{"name": "add", "argu', "no JSON"),
        (f"{OPENS}{CALL} and more{CLOSES}", "does not follow its JSON"),
        (f"{OPENS}[1]{CLOSES}", "names no tool"),
        (f'{OPENS}{{"name": 3}}{CLOSES}', "names no tool"),
        (f'{OPENS}{{"name": "add", "arguments": [1]}}{CLOSES}', "no JSON object"),
        (f'{OPENS}{{"name": "add", "arguments": "x"}}{CLOSES}', "arguments are no JSON"),
        (f'{OPENS}{{"name": "add", "arguments": {{"a": NaN}}}}{CLOSES}', "NaN is no number"),
        (f'{OPENS}{{"name": "add", "arguments": {{"a": 1e999}}}}{CLOSES}', "a number that is too large"),
        (f'{OPENS}{{"name": "add", "arguments": {{"a": "\\ud800"}}}}{CLOSES}', "half of a surrogate pair"),
        (f'{OPENS}{{"name": "\\ud800", "arguments": {{}}}}{CLOSES}', "half of a surrogate pair"),
        (f"{OPENS}{'[' * 100_000}{CLOSES}", "nested too deeply"),
        *((f"{OPENS}{deep(count)}{CLOSES}", "nested too deeply") for count in (64, 500, 900, 970, 980, 990)),
        (f'{OPENS}{{"name": "add", "arguments": {json.dumps(deep(500))}}}{CLOSES}', "nested too deeply"),
    ],
)
def test_a_malformed_call_says_why_and_costs_no_other(text: str, why: str) -> None:
    parsed = hermes(f"{text}{OPENS}{CALL}{CLOSES}")
    first, second = parsed.calls
    assert of_text(as_text(parsed)) == parsed
    assert isinstance(first, Malformed) and why in first.why and len(first.text) <= 80
    assert second == Call("add", {"a": 1})


# Parsers of vLLM


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chat_tokenizer("<tool_call></tool_call><|python_tag|>")


@pytest.mark.vllm
def test_vllms_own_parser_finds_the_same(tokenizer: Any) -> None:
    pytest.importorskip("vllm.tool_parsers")
    from rollout_workers.tools.tool_calls import _OfVllm, _vllm_class

    theirs = _OfVllm("hermes", _vllm_class("hermes"), tokenizer)
    wanted = [Call("add", {"a": 1, "text": "ä\n"}), Call("now", {})]
    text = f"Well. {written(wanted)}"
    assert theirs(text, ()) == hermes(text) == Parsed("Well.", tuple(wanted))
    assert theirs("The answer.", ()) == hermes("The answer.")


@pytest.mark.vllm
def test_another_form_is_read_by_vllms_parser(tokenizer: Any) -> None:
    """Llama's calls are bare JSON, and its arguments are called parameters."""
    pytest.importorskip("vllm.tool_parsers")
    parse = parser_of("llama3_json", tokenizer)
    assert parse('{"name": "add", "parameters": {"a": 1}}', ()).calls == (Call("add", {"a": 1}),)
    assert parse("42", ()) == Parsed("42")


@pytest.mark.vllm
def test_a_parser_that_needs_other_marks_is_refused() -> None:
    pytest.importorskip("vllm.tool_parsers")
    with pytest.raises(InputError, match=r"llama3_json does not fit this model: .*<\|python_tag\|>"):
        parser_of("llama3_json", chat_tokenizer(None))


@pytest.mark.vllm
def test_an_unknown_parser_is_refused_with_the_nearest_name(tokenizer: Any) -> None:
    pytest.importorskip("vllm.tool_parsers")
    with pytest.raises(
        InputError, match="tool_parser=llama3json: no parser has this name; did you mean 'llama"
    ):
        parser_of("llama3json", tokenizer)
