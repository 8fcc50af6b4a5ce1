"""Responses that are messages, from a file's rows to the tokens that are learned."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.templates import ASKED, CALLS, PLAIN, REASONS, THINKS, TOOLS, model_of
from contracts.errors import InputError
from contracts.rollout import Lease, Prompt, Sampling
from services.data.annotated.responses import read_responses
from services.data.annotated.row_columns import ResponseData
from services.data.tasks.prompts import Prompts
from services.data.tokens.cut_prompts import cut_examples
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import tools_warnings
from services.data.tokens.response_tokens import ResponseTokens
from services.training.loop.demonstrations import Demonstrations
from tests.contracts.test_chat_answers import model

THOUGHT = "<think>\nThree and four make seven.\n</think>\n\nIt is seven.<|im_end|>"
CALL = '<think>\n\n</think>\n\n<call>get_weather{"city": "Rome"}</call><|im_end|>'
UNLIKE = {**REASONS, "reasoning_content": "Seven is lucky."}


def written(folder: Path, row: dict[str, Any]) -> dict[str, str]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for _ in range(4)), encoding="utf-8")
    return dict.fromkeys(("train", "validation", "test"), str(file))


def learned(files: dict[str, str], name: str) -> list[str]:
    """The response's tokens as annotate saves them, each row's."""
    its = model(name)
    tokens = ResponseTokens(its.tokenizer, PromptLimit(), 200, None, its.chat())
    rows = read_responses(ResponseData(files=files), None, "train").rows
    return [its.tokenizer.decode(tokens(row.prompt, row.response).response) for row in rows]


def demonstrated(files: dict[str, str], name: str) -> list[str]:
    """The tokens that supervised training learns, each reference's."""
    its, chat = model(name), model(name).chat()
    leases = [
        Lease(0, prompt, chat.of_prompt(prompt), 0, 0, Sampling(200))
        for prompt in Prompts(data_files=files).prompts("train")
    ]
    made = Demonstrations(its.tokenizer, 200, "response", chat=chat)(leases)
    return [its.tokenizer.decode(rollout.turns[0].tokens) for rollout in made.rollouts]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(THINKS, THOUGHT), (REASONS, THOUGHT), (CALLS, CALL)],
    ids=["text", "field", "call"],
)
def test_whole_conversations_and_completions_are_learned_as_they_are(
    tmp_path: Path, answer: dict[str, Any], expected: str
) -> None:
    for row in ({"messages": [ASKED, answer], "tools": TOOLS}, {"prompt": [ASKED], "completion": [answer]}):
        files = written(tmp_path, row)
        assert set(demonstrated(files, "splits")) == {expected}
        assert set(learned(files, "splits")) == {expected}


def test_a_pair_that_differs_in_its_thoughts_is_a_pair(tmp_path: Path) -> None:
    files = written(tmp_path, {"prompt": [ASKED], "chosen": [REASONS], "rejected": [UNLIKE]})
    good, bad, *_ = learned(files, "splits")
    assert good == THOUGHT
    assert bad == "<think>\nSeven is lucky.\n</think>\n\nIt is seven.<|im_end|>"
    equal = written(tmp_path, {"prompt": [ASKED], "chosen": [REASONS], "rejected": [REASONS]})
    with pytest.raises(InputError, match="no usable response"):
        read_responses(ResponseData(files=equal), None, "train")


def test_a_response_without_a_place_is_refused_before_the_start(tmp_path: Path) -> None:
    for answer, message in ((PLAIN, "which opens a thought"), (CALLS, "which opens a thought")):
        task = Prompts(data_files=written(tmp_path, {"messages": [ASKED, answer]}))
        with pytest.raises(InputError, match=f"response to prompt prompts/train/0: .*{message}"):
            cut_examples(task.prompts("train"), PromptLimit(), 64, None, len, model("opens").chat())
    whole = Prompt("p", ASKED["content"], ("It is seven.",))
    cut = cut_examples([whole], PromptLimit(), 13, None, len, model("verbatim").chat())
    assert cut.num_cut == 0  # 12 letters and the end
    assert cut_examples([whole], PromptLimit(), 12, None, len, model("verbatim").chat()).num_cut == 1


def test_tools_that_the_template_does_not_show_are_told() -> None:
    with_tools = Prompt("p", "", meta={"messages": [ASKED], "tools": TOOLS})
    (warning,) = tools_warnings(model("splits").chat(), [with_tools])
    assert warning.startswith("the chat template has no place for tools, but prompts have tools")
    shows = model_of("shows", "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}").chat()
    assert tools_warnings(shows, [with_tools]) == []
    assert tools_warnings(model("splits").chat(), [Prompt("p", "Hi!")]) == tools_warnings(None, []) == []
