"""`whetstone chat`: what the model reads, what is seen of its answer, and how a person stops either."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Sampling
from services.chat import Conversation, Speaker, _Letters, converse
from services.run_model import find_model
from tests.models import make_tiny_model
from tests.services.test_cli import PROMISED_S, whetstone

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and no_system is defined %}"
    "{{ raise_exception('no system message, please') }}{% endif %}"
    "{{ {'system': '90', 'user': '91', 'assistant': '92'}[m.role] }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}92{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", window=64)


@pytest.fixture
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def speaker(model: Path) -> Speaker:
    return Speaker(find_model(str(model)), Sampling(max_tokens=12, temperature=0.0), seed=0)


def numbers(tokenizer: Any, conversation: Conversation) -> str:
    return str(tokenizer.decode(conversation.tokens()))


def said(conversation: Conversation, *contents: str) -> Conversation:
    for index, content in enumerate(contents):
        conversation.add("assistant" if index % 2 else "user", content)
    return conversation


# What the model reads


def test_without_a_template_the_conversation_is_one_text(tokenizer: Any) -> None:
    assert numbers(tokenizer, said(Conversation(tokenizer), "3 5", "7", "9")) == "3 5 7 9"
    assert numbers(tokenizer, said(Conversation(tokenizer, system="1"), "3 5")) == "1 3 5"


def test_a_template_tells_who_speaks(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    assert numbers(tokenizer, said(Conversation(tokenizer), "3", "7", "9")) == "91 3 92 7 91 9 92"
    assert numbers(tokenizer, said(Conversation(tokenizer, system="1"), "3")) == "90 1 91 3 92"


def test_a_template_without_system_messages_refuses_one_before_anything_is_said(tokenizer: Any) -> None:
    tokenizer.chat_template = "{% set no_system = true %}" + TEMPLATE
    Conversation(tokenizer)
    with pytest.raises(InputError, match="no system message, please"):
        Conversation(tokenizer, system="1")


def test_the_oldest_questions_go_first_and_the_system_message_stays(tokenizer: Any) -> None:
    conversation = said(Conversation(tokenizer, system="1", room=6), "3 5", "7", "9", "11", "13 14")
    # 1 + 2 + 1 + 1 + 1 + 2 = 8 tokens; without the first question and its answer 8 - 3 = 5.
    assert numbers(tokenizer, conversation) == "1 9 11 13 14"
    assert [turn["content"] for turn in conversation.turns] == ["9", "11", "13 14"]


def test_a_question_that_does_not_fit_alone_is_refused(tokenizer: Any) -> None:
    conversation = said(Conversation(tokenizer, room=3), "3", "5", "1 2 3 4")
    with pytest.raises(InputError, match="makes 4 tokens, and the model can read 3"):
        conversation.tokens()
    assert len(conversation.turns) == 3  # nothing was forgotten for it


# What is seen


def test_an_answer_comes_in_pieces_and_is_what_transformers_writes(
    model: Path, tokenizer: Any, speaker: Speaker
) -> None:
    from transformers import AutoModelForCausalLM

    pieces: list[str] = []
    answer = speaker.answer([6, 8], pieces.append)
    read = tokenizer("3 5", return_tensors="pt")["input_ids"]
    lm = AutoModelForCausalLM.from_pretrained(model)
    written = lm.generate(read, max_new_tokens=12, do_sample=False)[0, 2:]
    assert answer == "".join(pieces) == tokenizer.decode(written, skip_special_tokens=True)
    assert len(pieces) == len(answer.split()) > 1


def test_half_a_letter_waits_for_its_other_half() -> None:
    class Bytes:
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return bytes(tokens).decode("utf-8", errors="replace")

    import torch

    pieces: list[str] = []
    letters = _Letters(Bytes(), pieces.append)
    letters.put(torch.tensor([[1, 2, 3]]))  # the prompt is not said again
    for byte in "aé".encode() + b"\xe2\x82":  # and the first two of the three bytes of €
        letters.put(torch.tensor([byte]))
    assert pieces == ["a", "é"]
    letters.end()
    assert "".join(pieces) == letters.said == "aé\ufffd"


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(tokenizer: Any, speaker: Speaker) -> None:
    whole = speaker.answer([6, 8], lambda _: None)
    conversation, seen = Conversation(tokenizer), list[str]()
    converse(conversation, speaker, iter(["3 5"]), _interrupting_at(3, seen))
    stopped = " ".join(whole.split()[:3])
    assert conversation.turns[-1] == {"role": "assistant", "content": stopped}
    converse(conversation, speaker, iter(["9"]), seen.append)
    assert len(conversation.turns) == 4
    assert conversation.turns[-1]["content"]


def _interrupting_at(piece: int, seen: list[str]) -> Callable[[str], None]:
    """As if Ctrl-C was pressed while the model computes, right after that many pieces."""

    def say(text: str) -> None:
        seen.append(text)
        if len(seen) == piece:
            raise KeyboardInterrupt

    return say


def test_a_seed_repeats_a_conversation(model: Path) -> None:
    def answer(seed: int | None) -> str:
        sampled = Speaker(find_model(str(model)), Sampling(max_tokens=12), seed)
        return sampled.answer([6, 8], lambda _: None)

    assert answer(1) == answer(1) != answer(2)
    assert answer(None) != answer(None)


# The command


def test_piped_lines_are_answered_until_quit(model: Path) -> None:
    typed = "3 5\n\n9\nreset\n3 5\n" + "4 " * 60 + "\n9\nquit\n3 5\n"
    command = [sys.executable, "-m", "services.cli", "chat", str(model)]
    options = ["--temperature", "0", "--max-tokens", "8"]
    ended = subprocess.run([*command, *options], input=typed, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    answers = ended.stdout.splitlines()
    assert len(answers) == 4
    assert all(answers)
    assert answers[:2] == answers[2:]  # after the reset the same questions have the same answers
    assert "makes 60 tokens, and the model can read 56. Say it in fewer words." in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--temperature", "-1"], "temperature: got -1.0"),
        (["--max-tokens", "64"], "max_tokens=64 leaves no room"),
        (["--seed", "-3"], "argument --seed: got -3; expected 0 or more"),
    ],
)
def test_wrong_options_are_refused_at_once(model: Path, arguments: list[str], expected: str) -> None:
    done = whetstone("chat", str(model), *arguments)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert done.cpu_s < PROMISED_S


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = whetstone("chat", "runs/nothing", cwd=tmp_path)
    assert done.code == 2
    assert "runs/nothing: there is no such folder" in done.err
    assert done.cpu_s < PROMISED_S
