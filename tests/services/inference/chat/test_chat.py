"""`whetstone chat`: what the model reads, what is seen of its answer, and how a person stops either."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt, Sampling
from rollout_workers.environments.dialogue import Dialogue
from services.data.tasks.daily_dialog import DailyDialog
from services.data.tokens.prompt_tokens import PromptTokens
from services.inference.chat.conversation import OUTGROWN, converse
from services.inference.chat.prompts import Lines, Message, Reader, Template, Utterances, layout_of
from services.inference.chat.speaker import Answer, Letters, Speaker, load_tokenizer
from services.inference.generation.run_model import find_model
from tests.models import NUMBERS, make_tiny_model
from tests.services.test_cli import PROMISED_S, whetstone

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and no_system is defined %}"
    "{{ raise_exception('no system message, please') }}{% endif %}"
    "{{ {'system': '90', 'user': '91', 'assistant': '92'}[m.role] }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}92{% endif %}"
)
DIALOGUE = {  # as a run writes it: with an option that no task's class has
    "task": {"name": "daily_dialog", "context_size": 3, "eou_token": "99", "truncation_side": "left"}
}
GREEDY = Sampling(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", window=64)


@pytest.fixture
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def speaker(model: Path) -> Speaker:
    return speaker_of(model, GREEDY)


def speaker_of(model: Path, sampling: Sampling, seed: int | None = 0) -> Speaker:
    files = find_model(str(model))
    return Speaker(files, load_tokenizer(files), sampling, seed)


def said(*contents: str) -> list[Message]:
    """The user's and the model's in turns, so that the user's is the last of an odd number."""
    return [
        {"role": "assistant" if index % 2 else "user", "content": content}
        for index, content in enumerate(contents)
    ]


# What the model reads


def test_without_a_template_the_conversation_is_one_text(tokenizer: Any) -> None:
    assert tokenizer.decode(Lines(tokenizer, None).tokens(said("3 5", "7", "9"))) == "3 5 7 9"
    assert tokenizer.decode(Lines(tokenizer, "1").tokens(said("3 5"))) == "1 3 5"


def test_a_template_tells_who_speaks(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    silent, with_system = (
        Template(Chat(tokenizer, ChatForm())),
        Template(Chat(tokenizer, ChatForm(system="1"))),
    )
    assert tokenizer.decode(silent.tokens(said("3", "7", "9"))) == "91 3 92 7 91 9 92"
    assert tokenizer.decode(with_system.tokens(said("3"))) == "90 1 91 3 92"


def test_a_template_without_system_messages_refuses_one_before_anything_is_said(tokenizer: Any) -> None:
    tokenizer.chat_template = "{% set no_system = true %}" + TEMPLATE
    Template(Chat(tokenizer, ChatForm()))
    with pytest.raises(InputError, match="no system message, please"):
        Template(Chat(tokenizer, ChatForm(system="1")))


@pytest.mark.parametrize("sequence", [("3 5", "7", "9"), ("1", "2", "3", "4 5", "6")])
def test_a_dialogue_is_read_as_the_task_writes_its_prompts(tokenizer: Any, sequence: Sequence[str]) -> None:
    """The same tokens that training leases for the last utterances of such a dialogue."""
    task = DailyDialog(context_size=3, eou_token="99")
    row = {"dialog": [*sequence, "8"], "act": [1] * (len(sequence) + 1), "emotion": [0] * (len(sequence) + 1)}
    prompt = task.of_row("train", row, "")[-1]
    trained_on = PromptTokens(tokenizer)(prompt)
    layout = layout_of(DIALOGUE, tokenizer, None)
    assert tuple(Reader(layout, None).read(said(*sequence))[0]) == trained_on
    assert tokenizer.decode(trained_on).endswith(f"{sequence[-1]} 99")
    assert layout.stop == ("99",)


def test_a_talk_of_other_prompts_has_the_environments_marks(tokenizer: Any) -> None:
    """Text that the model read in training: prompt, own answer and partner's, each with the mark."""
    played = Dialogue(separator="99", partner=f"{__name__}:Nine")
    talk = played.make()
    read = talk.reset(Prompt("p", "3 5 99"), 0).text + " 7" + played.reply_end
    read += talk.step("7").observation.text

    config = {"task": {"name": "prompts", "data_files": "x"}, "environment": environment_of(played)}
    layout = layout_of(config, tokenizer, None)
    tokens, _ = Reader(layout, None).read(said("3 5", "7", "9"))
    assert tokenizer.decode(tokens) == read == "3 5 99 7 99 9 99"
    assert (layout.stop, layout.most) == (("99",), None)
    with pytest.raises(InputError, match="the message contains 99, which ends each utterance of this model"):
        layout.tokens(said("3 99"))
    unmarked = {**config, "environment": environment_of(Dialogue(separator=""))}
    assert isinstance(layout_of(unmarked, tokenizer, None), Lines)


class Nine:
    def reply(self, history: list[str], seed: int) -> str:
        return "9"


def environment_of(settings: Dialogue) -> dict[str, Any]:
    return {"name": "dialogue", **settings.model_dump(mode="json")}


def test_which_layout_a_run_has(tokenizer: Any) -> None:
    growing = {**DIALOGUE, "environment": {"name": "dialogue", "template": "plain"}}
    assert isinstance(layout := layout_of(growing, tokenizer, None), Utterances)
    assert layout.most is None  # in an environment a talk grows
    assert isinstance(layout_of({"task": {"name": "increasing_numbers"}}, tokenizer, None), Lines)
    tokenizer.chat_template = TEMPLATE
    assert isinstance(layout_of({}, tokenizer, ChatForm()), Template)
    assert isinstance(layout_of(DIALOGUE, tokenizer, None), Utterances)  # its prompts had no template
    assert isinstance(layout_of(DIALOGUE, tokenizer, ChatForm()), Template)
    plain = {
        "task": {"name": "increasing_numbers"},
        "environment": {"name": "textworld", "template": "plain"},
    }
    assert isinstance(layout_of(plain, tokenizer, None), Lines)


def test_a_dialogue_has_no_place_for_a_system_message_or_for_its_own_mark(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="--system: this run's model was trained on utterances alone"):
        layout_of(DIALOGUE, tokenizer, None, "1")
    with pytest.raises(InputError, match=r"contains 99, which ends each utterance .*; leave it out"):
        layout_of(DIALOGUE, tokenizer, None).tokens(said("3 99 5"))


def test_a_task_that_is_not_at_hand_is_said_and_not_needed(
    tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(layout_of({"task": {"name": "no_such_module:Task"}}, tokenizer, None), Lines)
    assert "The run's task can't be made here" in capsys.readouterr().err


def test_the_oldest_questions_go_first_and_the_system_message_stays(tokenizer: Any) -> None:
    reader = Reader(Lines(tokenizer, "1"), room=6)
    # 1 + 2 + 1 + 1 + 1 + 2 = 8 tokens; without the first question and its answer 8 - 3 = 5.
    tokens, num_forgotten = reader.read(said("3 5", "7", "9", "11", "13 14"))
    assert (tokenizer.decode(tokens), num_forgotten) == ("1 9 11 13 14", 2)


def test_of_a_dialogue_whole_utterances_go_first(tokenizer: Any) -> None:
    reader = Reader(layout_of(DIALOGUE, tokenizer, None), room=5)
    # "3 5 99 7 99 9 99" has 7 tokens; without the oldest utterance 4.
    tokens, num_forgotten = reader.read(said("3 5", "7", "9"))
    assert (tokenizer.decode(tokens), num_forgotten) == ("7 99 9 99", 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(4, 30))
def test_as_much_is_read_as_fits(lengths: list[int], room: int) -> None:
    """The halving finds what trying every start would."""
    layout = _Counting()
    messages = said(*("x" * length for length in lengths))
    messages = messages if messages[-1]["role"] == "user" else messages[1:]
    fitting = [start for start in range(len(messages)) if len(layout.tokens(messages[start:])) <= room]
    if not messages or messages[-1]["role"] != "user":
        return
    tokens, num_forgotten = Reader(layout, room).read(messages)
    assert (num_forgotten, len(tokens)) == (fitting[0], len(layout.tokens(messages[fitting[0] :])))


class _Counting:
    """A token a letter."""

    stop, most, by_pairs = (), None, False

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [1] * sum(len(message["content"]) for message in messages)


def test_a_question_that_does_not_fit_alone_is_refused(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="makes 4 tokens, and the model can read 3: say it in fewer words"):
        Reader(Lines(tokenizer, None), room=3).read(said("3", "5", "1 2 3 4"))


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
    assert answer.text == "".join(pieces) == tokenizer.decode(written, skip_special_tokens=True)
    assert len(pieces) == len(answer.text.split()) > 1
    assert answer.finish_reason == FinishReason.LENGTH


def test_a_repetition_penalty_is_that_of_transformers(model: Path, tokenizer: Any, speaker: Speaker) -> None:
    from transformers import AutoModelForCausalLM

    sampling = Sampling(max_tokens=12, temperature=0.0, repetition_penalty=9.0)
    answer = speaker_of(model, sampling).answer([6, 8], lambda _: None)
    read = tokenizer("3 5", return_tensors="pt")["input_ids"]
    lm = AutoModelForCausalLM.from_pretrained(model)
    written = lm.generate(read, max_new_tokens=12, do_sample=False, repetition_penalty=9.0)[0, 2:]
    assert answer.text == tokenizer.decode(written, skip_special_tokens=True)
    assert answer.text != speaker.answer([6, 8], lambda _: None).text


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_an_encoder_decoder_answers_as_transformers_has_it(tmp_path: Path, architecture: Any) -> None:
    from transformers import AutoModelForSeq2SeqLM

    path = make_tiny_model(tmp_path, architecture=architecture, sharpness=3.0)
    files = find_model(str(path))
    tokenizer = load_tokenizer(files)
    tokens = Lines(tokenizer, None).tokens(said("3 5"))
    lm = AutoModelForSeq2SeqLM.from_pretrained(path)
    read = tokenizer("3 5", return_tensors="pt")["input_ids"]
    written = lm.generate(read, max_new_tokens=6, do_sample=False, forced_eos_token_id=None)[0]
    answer = Speaker(files, tokenizer, Sampling(max_tokens=6, temperature=0.0), 0).answer(
        tokens, lambda _: None
    )
    assert answer.text == tokenizer.decode(written, skip_special_tokens=True)


def test_a_model_without_end_token_answers_up_to_the_limit(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((path / name).read_text())
        kept = {key: value for key, value in settings.items() if not key.startswith(("eos", "pad", "bos"))}
        (path / name).write_text(json.dumps(kept))
    speaker = speaker_of(path, GREEDY)
    assert speaker.never_ends
    assert speaker.answer([6, 8], lambda _: None).finish_reason == FinishReason.LENGTH
    assert not speaker_of(path, Sampling(max_tokens=12, stop=("99",))).never_ends


class Bytes:
    """Tokens are the bytes of UTF-8."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


def letters_of(text: bytes, sampling: Sampling) -> tuple[list[str], Letters]:
    import torch

    pieces: list[str] = []
    letters = Letters(Bytes(), sampling, pieces.append)
    letters.put(torch.tensor([[1, 2, 3]]))  # the prompt is not said again
    for byte in text:
        if not letters.at_stop:
            letters.put(torch.tensor([byte]))
    return pieces, letters


def test_half_a_letter_waits_for_its_other_half() -> None:
    pieces, letters = letters_of("aé".encode() + b"\xe2\x82", GREEDY)  # the first two of the three bytes of €
    assert pieces == ["a", "é"]
    letters.end()
    assert "".join(pieces) == letters.said == "aé\ufffd"


def test_a_stop_string_is_never_said_not_even_its_beginning() -> None:
    pieces, letters = letters_of(b"  a <E b <EOU> c", Sampling(max_tokens=99, stop=("<EOU>",)))
    assert (letters.said, letters.at_stop) == ("a <E b", True)
    assert pieces == ["a", " <E", " b"]  # "<E" was held back until a blank followed


def test_a_stop_string_within_the_least_number_of_tokens_does_not_count() -> None:
    _, letters = letters_of(b"ab;cd;ef", Sampling(max_tokens=99, min_tokens=4, stop=(";",)))
    assert letters.said == "ab;cd"


def test_an_answer_ends_at_its_stop_string(model: Path, speaker: Speaker) -> None:
    whole = speaker.answer([6, 8], lambda _: None).text.split()
    third = whole[2]
    assert third not in whole[:2]
    answer = speaker_of(model, Sampling(max_tokens=12, temperature=0.0, stop=(f" {third}",))).answer(
        [6, 8], lambda _: None
    )
    assert answer == Answer(" ".join(whole[:2]), FinishReason.STOP)


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(tokenizer: Any, speaker: Speaker) -> None:
    whole = speaker.answer([6, 8], lambda _: None)
    reader, seen = _Remembering(Lines(tokenizer, None), 40), list[str]()
    converse(reader, speaker, iter(["3 5", "9", "exit", "11"]), _interrupting_at(3, seen))
    stopped = " ".join(whole.text.split()[:3])
    assert "".join(seen).startswith(f"{stopped}\n")
    assert [message["content"] for message in reader.last] == ["3 5", stopped, "9"]


def test_the_terminal_says_once_that_the_oldest_part_is_left_out(
    tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Curt:
        def answer(self, tokens: Sequence[int], say: Callable[[str], None]) -> Answer:
            return Answer("7", FinishReason.STOP)

    lines = ["3 5", "9 11", "13 14", "15 16"]
    converse(Reader(Lines(tokenizer, None), 3), Curt(), iter(lines[:1]), lambda _: None)
    assert capsys.readouterr().err == ""
    converse(Reader(Lines(tokenizer, None), 3), Curt(), iter([*lines, "reset", *lines]), lambda _: None)
    assert capsys.readouterr().err == f"{OUTGROWN}\n" * 2


class _Remembering(Reader):
    last: list[Message]

    def read(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        object.__setattr__(self, "last", list(messages))
        return super().read(messages)


def _interrupting_at(piece: int, seen: list[str]) -> Callable[[str], None]:
    """As if Ctrl-C was pressed while the model computes, right after that many pieces."""

    def say(text: str) -> None:
        seen.append(text)
        if len(seen) == piece:
            raise KeyboardInterrupt

    return say


def test_who_no_longer_wants_an_answer_ends_it(speaker: Speaker) -> None:
    pieces: list[str] = []
    answer = speaker.answer([6, 8], pieces.append, is_stopped=lambda: len(pieces) >= 3)
    assert 3 <= len(pieces) <= 4 < GREEDY.max_tokens  # transformers may be a token ahead
    assert answer.finish_reason is None


def test_a_seed_repeats_a_conversation(model: Path) -> None:
    def answer(seed: int | None) -> str:
        return speaker_of(model, Sampling(max_tokens=12), seed).answer([6, 8], lambda _: None).text

    assert answer(1) == answer(1) != answer(2)
    assert answer(None) != answer(None)


# The command


def test_piped_lines_are_answered_until_quit(model: Path) -> None:
    typed = "3 5\n\n9\nreset\n3 5\n" + "4 " * 60 + "\n9\nquit\n3 5\n"
    command = [sys.executable, "-m", "services.cli", "chat", str(model)]
    options = ["--greedy", "--max-tokens", "8"]
    ended = subprocess.run([*command, *options], input=typed, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    answers = ended.stdout.splitlines()
    assert len(answers) == 4
    assert all(answers)
    assert answers[:2] == answers[2:]  # after the reset the same questions have the same answers
    assert "makes 60 tokens, and the model can read 56: say it in fewer words" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--temperature", "-1"], "temperature: got -1.0"),
        (["--max-tokens", "64"], "max_tokens=64 leaves no room"),
        (["--seed", "-3"], "argument --seed: got -3; expected 0 or more"),
        (["--greedy", "--temperature", "0.5"], "--greedy is --temperature 0, got --temperature 0.5 too"),
        (["--port", "80"], "--port is for the page in a browser: give --web with it"),
        (["--web", "--host", "0.0.0.0"], "listening on 0.0.0.0 lets others in, and there is no token"),
        (["--web", "--token", "a b"], "--token: expected 16 or more letters, digits and signs of ASCII"),
        (["--web", "--port", "99999"], "--port 99999: expected 65535 at most"),
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


def test_a_dialogue_runs_model_ends_at_the_mark_and_reads_as_many_utterances(tmp_path: Path) -> None:
    """With `context_size` 1 the same line has the same answer, whatever was said before."""
    run = tmp_path / "dialogue"
    make_tiny_model(run / "model", vocab=[*NUMBERS[:10], "98", "99"], sharpness=6.0)
    config = {"task": {**DIALOGUE["task"], "context_size": 1}, "rollout": {"max_tokens": 30}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "services.cli", "chat", str(run), "--greedy"]
    typed = "3 5\n4\n3 5\n1 99\n"
    ended = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    answers = ended.stdout.splitlines()
    assert len(answers) == 3
    assert answers[0] == answers[2]
    assert not any("99" in answer for answer in answers)
    assert "the message contains 99, which ends each utterance of this model" in ended.stderr
