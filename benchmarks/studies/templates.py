"""Compare our rendering of each chat template in a folder with transformers' rendering.

`python -m benchmarks.studies.templates FOLDER` writes docs/results/templates.md.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import RESPONSE, conversation, spoken
from contracts.conversations.thoughts import opening_mark
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.models.new_tokenizer import byte_tokenizer

PAGE = Path(__file__).parents[2] / "docs/results/templates.md"
MARK = re.compile(
    r"<\|[^|<>\n'\"{}]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?[a-zA-Z_:0-9]{2,30}>|\[/?[A-Z_]{3,20}\]|<\|[a-z_]+>|"
    r"<[a-z_]+\|>|\[e~\[|\]~b\]|\]~!b\["
)
# Marks that the models' own tokenizers keep as plain text.
TEXT = re.compile(r"</?(?:think|tool_call|tools|tool_response|answer)>")
# Tokens at which the models stop, the tokenizer's end token first; by a part of the template's name.
STOPS = {
    "Apertus": ("<|assistant_end|>",),
    "Seed": ("<seed:eos>",),
    "GLM": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "MiniMax": ("[e~[",),
    "deepseek": ("<｜end▁of▁sentence｜>",),
    "granite": ("<|end_of_text|>",),
    "Phi-3": ("<|endoftext|>", "<|end|>"),
    "gpt-oss": ("<|return|>", "<|call|>"),
}
ASKED = {"role": "user", "content": "What is three and four ?"}
THOUGHT, ANSWER = "Three and four make seven.", "It is seven."
PLAIN = {"role": "assistant", "content": ANSWER}
THINKS = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"}
REASONS = {"role": "assistant", "reasoning_content": THOUGHT, "content": ANSWER}
ARGUMENTS = {"city": "Rome"}
FUNCTION = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call00001", "type": "function", "function": FUNCTION}],
}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "21 degrees"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
]
NEXT = {"role": "user", "content": "And then ?"}
Talk = Sequence[dict[str, Any]]
TALKS: dict[str, tuple[Talk, list[Any]]] = {
    "plain": ([ASKED, PLAIN], []),
    "thought": ([ASKED, THINKS], []),
    "reasoning": ([ASKED, REASONS], []),
    "a call": ([ASKED, CALLS], TOOLS),
    "after a result": ([ASKED, CALLS, RESULT, PLAIN], TOOLS),
}
COLUMNS = (*TALKS, "three turns", "end")
OUTCOMES = EQUAL, INSIDE, BEHIND, ALONE = "equal", "in the thought", "no thought", "prompt differs"


@dataclass(frozen=True, slots=True)
class Model:
    """A tokenizer with a template, and the tokens at which its model stops."""

    name: str
    tokenizer: Any
    stops: tuple[int, ...]

    def chat(self, **options: Any) -> Chat:
        return Chat(self.tokenizer, ChatForm(ends=self.stops, options=options))

    def expected(self, talk: Talk, tools: Sequence[Any], *, ask: bool, **options: Any) -> Iterator[str]:
        """Yield transformers' rendering of each form of a conversation that the template accepts."""
        for form in _forms(talk):
            try:
                yield self.tokenizer.apply_chat_template(
                    form, tools=list(tools) or None, tokenize=False, add_generation_prompt=ask, **options
                )
            except Exception:
                continue


def model_of(name: str, template: str) -> Model:
    """Return a tokenizer that reads bytes, with a template and its marks as special tokens."""
    plain = "<|im_end|>" if "<|im_end|>" in template else "</s>"
    stops = next((marks for part, marks in STOPS.items() if part in name), (plain,))
    marks = {mark for mark in MARK.findall(template) if not TEXT.fullmatch(mark)}
    special = list(dict.fromkeys(["<pad>", *stops, "<s>", *sorted(marks)]))
    made = byte_tokenizer(
        special, eos_token=stops[0], bos_token="<s>", pad_token="<pad>", model_max_length=10**6
    )
    made.chat_template = template
    return Model(name, made, tuple(made.convert_tokens_to_ids(list(stops))))


def row(model: Model) -> dict[str, str]:
    """Return a template's cells: an outcome, or `refused: WHY`."""
    outcomes = {name: outcome(model, *talk) for name, talk in TALKS.items()}
    return outcomes | {"three turns": turns(model), "end": end(model)}


def outcome(model: Model, talk: Talk, tools: Sequence[Any], **options: Any) -> str:
    """Compare a prompt and its answer with transformers' rendering.

    Raises:
        AssertionError: the texts differ, and the template does not let the model generate them.
    """
    chat, its = model.chat(**options), model.tokenizer
    *messages, answer = conversation(list(talk), "here")
    prompt = Prompt("p", "", meta={"messages": messages, "tools": list(tools), RESPONSE: answer})
    try:
        read = its.decode(chat.of_prompt(prompt))
        drawn = chat.answer_to(prompt, spoken(answer))
    except InputError as error:
        return f"refused: {error}"
    assert drawn[-1] in model.stops, (model.name, "does not stop", its.decode(drawn))
    assert read in list(model.expected(messages, tools, ask=True, **options)), (model.name, "prompt", read)
    reply = its.decode(drawn)
    parts = [text for text in (THOUGHT, ANSWER) if text in str(talk[-1])]
    assert all(reply.count(part) == 1 for part in parts), (model.name, reply)
    wholes = list(model.expected(talk, tools, ask=False, **options))
    if any(_is_equal(read + reply, whole, its.decode(drawn[-1:])) for whole in wholes):
        return EQUAL
    if opening_mark(read):
        assert reply.startswith(THOUGHT), (model.name, reply)
        return INSIDE
    written = reply.removesuffix(its.decode(drawn[-1:]))
    assert any(whole.rstrip().endswith(reply) or written in whole for whole in wholes), (
        model.name,
        reply,
    )
    return BEHIND if read.rstrip().endswith("</think>") else ALONE


def turns(model: Model) -> str:
    """Compare a second turn, after a complete or truncated answer, with transformers' rendering."""
    chat, its = model.chat(), model.tokenizer
    try:
        read = chat.tokens([ASKED])
        thought = "Hm.\n</think>\n\n" if opening_mark(its.decode(read)) else ""
        body = chat.encode(thought + ANSWER)
        ends = [(*body, stop) for stop in model.stops[:2] if its.decode([stop]) in ENDS_A_TURN]
        turn = chat.turn([NEXT])
    except InputError as error:
        return f"refused: {error}"
    whole = next(model.expected([ASKED, PLAIN, NEXT], (), ask=True))
    behind = whole.partition(ANSWER)[2]
    for drawn in [body, *ends]:
        text = its.decode(drawn + chat.following(drawn, turn)).partition(ANSWER)[2]
        text = text.replace("<|return|>", "<|end|>")  # the record keeps what was drawn
        assert text == behind, (model.name, text, behind)
    return EQUAL


ENDS_A_TURN = {marks[-1] for marks in STOPS.values()} - {"<|observation|>", "<|call|>"}
ENDS_A_TURN |= {"<|im_end|>", "</s>", "<|user|>", "<|return|>"}


def end(model: Model) -> str:
    """Return the token that supervised training teaches last."""
    chat = model.chat()
    for text in (PLAIN["content"], THINKS["content"]):
        try:
            drawn = chat.answer_to(Prompt("p", ASKED["content"]), text)
        except InputError:
            continue
        assert drawn[-1] in model.stops
        return f"`{model.tokenizer.decode(drawn[-1:])}`"
    return "refused"


def _forms(talk: Talk) -> Iterator[list[dict[str, Any]]]:
    """Yield a conversation in the forms of calls, contents and reasoning."""
    for arguments, content, place in itertools.product(
        (FUNCTION["arguments"], ARGUMENTS), (None, ""), ("reasoning_content", "thinking", "blocks")
    ):
        yield [_in_form(message, arguments, content, place) for message in talk]


def _in_form(message: dict[str, Any], arguments: Any, content: str | None, place: str) -> dict[str, Any]:
    if "tool_calls" in message:
        call = {**message["tool_calls"][0], "function": {**FUNCTION, "arguments": arguments}}
        return {**message, "content": content, "tool_calls": [call]}
    if "reasoning_content" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    if place == "blocks":
        thought = {"type": "thinking", "thinking": message["reasoning_content"]}
        return {**rest, "content": [thought, {"type": "text", "text": message["content"]}]}
    return {**rest, place: message["reasoning_content"]}


def _is_equal(text: str, whole: str, stop: str) -> bool:
    """Return whether texts are equal up to text after the stop, or to a missing stop."""
    if text == whole.rstrip() + stop:
        return True
    behind = whole.removeprefix(text)
    return whole.startswith(text) and not MARK.sub("", behind).strip()


HEAD = """# Chat templates of published models

Whetstone and transformers' `apply_chat_template` render the same messages with each template.
`python -m benchmarks.studies.templates FOLDER` compares both with a tokenizer of bytes, and writes this page.
Every answer ends with a token at which the model stops.

outcome | meaning
--- | ---
equal | prompt, answer and end equal transformers' rendering
in the thought | the prompt opens a thought, the template drops thoughts, and the answer continues in the thought
no thought | the prompt ends with an empty thought, but the template omits it before answers
prompt differs | the template writes different prompts before an answer and for generation
refused | before the start, a message gives the reason and a remedy

The columns are a plain answer; an answer with `<think>…</think>` in its content; an answer with
`reasoning_content`; a tool call; an answer after a call and its result; a second question after a complete
and after a truncated answer; the last token that supervised training teaches.

"""


def page(rows: dict[str, dict[str, str]]) -> str:
    """Return the table of outcomes, and the reasons of refusals, as Markdown."""
    reasons: dict[str, int] = {}
    lines = [f"template | {' | '.join(COLUMNS)}", " | ".join(["---"] * (len(COLUMNS) + 1))]
    for name, cells in rows.items():
        shown = []
        for column in COLUMNS:
            cell = cells[column].removeprefix("refused: ")
            if cell != cells[column]:
                why = re.sub(r"^(the response to )?prompt p: ", "", cell)
                cell = f"refused ({reasons.setdefault(why, len(reasons) + 1)})"
            shown.append(cell.replace("|", "\\|"))
        lines.append(f"{name} | {' | '.join(shown)}")
    notes = [f"{number}. {why.replace('<', '&lt;')}" for why, number in reasons.items()]
    return HEAD + "\n".join(lines) + "\n\n## The refusals\n\n" + "\n".join(notes) + "\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("expected a folder of templates: python -m benchmarks.studies.templates FOLDER")
    files = sorted(Path(sys.argv[1]).glob("*.jinja"), key=lambda file: file.stem.lower())
    rows = {file.stem: row(model_of(file.stem, file.read_text(encoding="utf-8"))) for file in files}
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
