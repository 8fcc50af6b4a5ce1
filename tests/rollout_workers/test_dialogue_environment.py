"""Talks: who speaks when, where an utterance ends, what ends a talk, and partners of every kind."""

import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.environments import Environment, Observation
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.dialogue import Dialogue, utterance_seed
from rollout_workers.environments.frozen_partner import FrozenPartner
from rollout_workers.environments.partner_texts import joined
from rollout_workers.environments.partners import Partner, make_partner
from tests.models import make_tiny_model
from tests.rollout_workers.episodes import WritingEngine, lease, play

CONTEXT = "How are you ? <EOU> Fine . <EOU>"
PROMPT = Prompt("daily_dialog/train/0/2", CONTEXT)
WORDS = ("how", "are", "you", "?", "fine", ".", "thanks", "bye", "<EOU>", "well", "and")

PARTNERS = '''
class Echo:
    """Says again what it heard, and its seed."""

    def __init__(self, ending=""):
        self.ending = ending

    def reply(self, history, seed):
        self.history, self.seed = history, seed
        return history[-1] + self.ending


class Silent:
    def reply(self, history, seed):
        return "  "


class Number:
    def reply(self, history, seed):
        return 3


class Mute:
    pass
'''


@pytest.fixture(autouse=True)
def _partners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "talkers.py").write_text(PARTNERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("talkers", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sharp enough that greedy answers are not ties."""
    return make_tiny_model(tmp_path_factory.mktemp("partner"), vocab=WORDS, window=32, sharpness=8.0)


def talk(**options: Any) -> Environment:
    return build(Dialogue, options, "environment").make()


def begun(environment: Environment, prompt: Prompt = PROMPT, seed: int = 5) -> Environment:
    environment.reset(prompt, seed)
    return environment


def refusal(**options: Any) -> str:
    with pytest.raises(InputError) as caught:
        talk(**options)
    return str(caught.value)


# The model's own copy


def test_a_talk_with_itself_begins_with_the_context_and_asks_its_copy() -> None:
    environment = talk()
    assert environment.reset(PROMPT, 5) == Observation(CONTEXT)
    step = environment.step(" And you ?")
    assert step.observation == Observation("", by_model=True)
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)


def test_what_the_copy_says_ends_the_talk_when_it_is_nothing_or_a_phrase_of_farewell() -> None:
    environment: Any = begun(talk(end_phrases=["see you", "bye"]))
    assert not environment.overhear(" Nice to see your house . ")
    assert not environment.overhear(" She sang a lullabye . ")
    assert environment.overhear(" See you later !")
    assert environment.overhear("BYE")
    assert environment.overhear("  ") and environment.overhear(" <EOU> what nobody said")
    assert not environment.overhear("Well . <EOU> bye")


def test_numbers_of_a_talk() -> None:
    """Three words, none, then two of five: what stands after the mark belongs to the other one."""
    environment = begun(talk())
    assert environment.step(" I am well").info == {"turns": 1, "reply_words": 3, "cut": 0, "empty": 0}
    assert environment.step(" ").info == {"turns": 2, "reply_words": 1.5, "cut": 0, "empty": 1}
    last = environment.step(" I know <EOU> So what")
    assert last.info == {"turns": 3, "reply_words": pytest.approx(5 / 3), "cut": 1, "empty": 1}
    environment.reset(PROMPT, 6)
    assert environment.step("so").info == {"turns": 1, "reply_words": 1, "cut": 0, "empty": 0}


def test_an_answer_that_ends_with_the_mark_is_not_cut() -> None:
    assert begun(talk()).step(" I am well <EOU>").info["cut"] == 0


@given(texts=st.lists(st.lists(st.sampled_from(["a", "b", " ", "<EOU>", "\n"])).map("".join), min_size=1))
def test_no_partner_ever_hears_a_mark_and_every_answer_is_counted(texts: list[str]) -> None:
    heard: list[list[str]] = []

    class Listening:
        def reply(self, history: list[str], seed: int) -> str:
            heard.append(history)
            return "go on"

    environment: Any = talk()
    environment._partner = Listening()
    environment.reset(PROMPT, 1)
    for text in texts:
        step = environment.step(text)
        assert step.observation.text == " go on <EOU>" and not step.terminated
    firsts = [text.split("<EOU>")[0].strip() for text in texts]
    assert [history[-1] for history in heard] == firsts
    assert all("<EOU>" not in utterance for history in heard for utterance in history)
    assert [len(history) for history in heard] == [2 * turn + 3 for turn in range(len(texts))]
    assert step.info["turns"] == len(texts) and step.info["empty"] == firsts.count("")


def test_another_mark_and_none_at_all() -> None:
    environment = begun(talk(separator="|", partner="talkers:Echo"), Prompt("p", "Hi | Hello |"))
    step = environment.step(" so so | no")
    assert step.observation.text == " so so |"
    environment = begun(talk(separator="", partner="talkers:Echo"), Prompt("p", "Hi there"))
    assert environment.step(" so <EOU> so").observation.text == " so <EOU> so"


def test_an_answer_that_was_cut_off_gets_the_mark_that_the_prompt_has() -> None:
    assert build(Dialogue, {}, "").reply_end == " <EOU>"
    assert build(Dialogue, {"separator": "|"}, "").reply_end == " |"
    assert build(Dialogue, {"separator": ""}, "").reply_end == ""
    assert build(Dialogue, {"reply_end": "\n"}, "").reply_end == "\n"


# Partners of the user's own


def test_a_partner_of_ones_own_hears_all_of_the_talk_and_gets_a_seed_for_each_utterance() -> None:
    environment: Any = begun(talk(partner="talkers:Echo", partner_options={"ending": " , you say ?"}))
    step = environment.step(" Well .")
    assert step.observation == Observation(" Well . , you say ? <EOU>")
    partner = environment._partner
    assert partner.history == ["How are you ?", "Fine .", "Well ."]
    assert partner.seed == utterance_seed(5, 1)
    environment.step(" Yes .")
    assert partner.history[3:] == ["Well . , you say ?", "Yes ."]
    assert partner.seed == utterance_seed(5, 2) != utterance_seed(5, 1)


def test_it_is_made_in_another_process_than_its_settings() -> None:
    settings = build(Dialogue, {"partner": "talkers:Echo", "end_phrases": ["bye"]}, "environment")
    assert begun(pickle.loads(pickle.dumps(settings)).make()).step(" bye").terminated


def test_a_partner_ends_the_talk() -> None:
    silent = begun(talk(partner="talkers:Silent")).step("Well ?")
    assert silent.terminated and silent.observation.text == ""
    echo = begun(talk(partner="talkers:Echo", end_phrases=["bye"]))
    assert not echo.step("Goodbyes are hard").terminated
    last = echo.step("Bye then")
    assert last.terminated and last.observation.text == " Bye then <EOU>"


def test_a_partner_that_says_no_text_is_refused() -> None:
    environment = begun(talk(partner="talkers:Number"))
    with pytest.raises(InputError, match=r"environment.partner=talkers:Number: reply\(\) returned 3 \(int\)"):
        environment.step("Well ?")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"partner": "slef"}, "environment.partner=slef: no such environment.partner; did you mean 'self'?"),
        ({"partner": "talkers:Nobody"}, "talkers has no class Nobody"),
        ({"partner": "talkers:Mute"}, "Mute is no partner: it lacks reply(history, seed)"),
        (
            {"partner": "talkers:Echo", "partner_options": {"end": "."}},
            "environment.partner_options: Echo does not take these options: got an unexpected keyword",
        ),
        ({"partner_options": {"model": "m"}}, "as partner has none"),
        ({"partner": "frozen"}, "environment.partner_options.model: is required"),
        (
            {"partner": "frozen", "partner_options": {"model": "m", "temperature": -1.0}},
            "environment.partner_options.temperature: got -1.0",
        ),
        ({"end_phrases": ["bye", " "]}, "one is empty, so every dialogue would end"),
        ({"separator": " <EOU>"}, "expected a mark without blanks around it"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_loaded(options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**options)


# A frozen model


def speaker(model: Path, separator: str = "<EOU>", **options: Any) -> Partner:
    made = make_partner("frozen", {"model": str(model), **options}, separator)
    assert made is not None
    return made


def test_a_frozen_partner_reads_the_talk_as_the_model_does_and_writes_the_likeliest(model: Path) -> None:
    """Held against transformers' own greedy generation, up to the mark or the end."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    lm = AutoModelForCausalLM.from_pretrained(model)
    partner = speaker(model, temperature=0.0, max_tokens=6)
    replies = set()
    for history in (
        ["how are you ?"],
        ["fine ."],
        ["well", "and you ?"],
        ["bye"],
        ["thanks"],
        ["how", "fine"],
    ):
        read = tokenizer(" <EOU> ".join(history) + " <EOU>", return_tensors="pt")
        with torch.inference_mode():
            whole = lm.generate(**read, max_new_tokens=6, do_sample=False, pad_token_id=0)
        written = tokenizer.decode(whole[0, read["input_ids"].shape[1] :], skip_special_tokens=True)
        reply = partner.reply(history, 3)
        assert reply.strip() == written.split("<EOU>")[0].strip()
        replies.add(reply)
    assert len(replies) > 1


def test_a_frozen_partner_draws_by_its_seed_and_is_no_other_for_what_it_said_before(model: Path) -> None:
    history = ["how are you ?"]
    partner = speaker(model, max_tokens=8)
    first = [partner.reply(history, seed) for seed in range(8)]
    assert len(set(first)) > 4
    assert [speaker(model, max_tokens=8).reply(history, seed) for seed in (3, 1)] == [first[3], first[1]]
    assert not any("<EOU>" in utterance for utterance in first)


def test_a_talk_longer_than_the_partners_window_loses_its_beginning(model: Path) -> None:
    """32 tokens, 8 of them for the answer: of 300 words the last 24 with their mark are read."""
    partner = speaker(model, max_tokens=8, temperature=0.0)
    long = ["how are you ? fine thanks and well . " * 30 + "you"]
    words = joined(long, "<EOU>").split()[-24:]
    assert words[-1] == "<EOU>"
    assert partner.reply(long, 1) == partner.reply([" ".join(words[:-1])], 1)


def test_a_talk_with_a_frozen_partner(model: Path) -> None:
    options = {"model": str(model), "max_tokens": 8}
    settings = build(Dialogue, {"partner": "frozen", "partner_options": options}, "environment")
    environment = begun(settings.make())
    expected = speaker(model, max_tokens=8).reply(["How are you ?", "Fine .", "and"], utterance_seed(5, 1))
    assert expected.strip() and environment.step(" and").observation.text == f" {expected.strip()} <EOU>"
    environment.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"model": "no/such/folder/here"},
            "environment.partner_options.model=no/such/folder/here does not load",
        ),
        ({"max_tokens": 32}, "max_tokens=32 leaves no room for the dialogue"),
    ],
)
def test_a_model_that_can_not_speak_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=expected):
        build(FrozenPartner, {"model": str(model), **options}, "").load("<EOU>")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, architecture="t5", vocab=WORDS)
    with pytest.raises(InputError, match=r"is an encoder-decoder \(t5\); expected a causal model"):
        FrozenPartner(model=str(tmp_path)).load("<EOU>")


# Played


def played(model: Path, settings: Dialogue, lines: Sequence[str]) -> tuple[Any, WritingEngine, Any]:
    """One talk whose weights say these lines, for whomever; its rollout, the engine, the tokenizer."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    written = iter([tuple(tokenizer(line)["input_ids"]) for line in lines])
    engine = WritingEngine(tokenizer, None, lambda _: next(written))
    opened = Prompt("p/0", "how are you ? <EOU>")
    (rollout,) = play(settings, engine, [replace(lease(), prompt=opened)])
    return rollout, engine, tokenizer


def test_in_self_play_only_the_models_own_answers_are_trained(model: Path) -> None:
    """Both speak with the same weights; two answers, with the copy's utterance between them."""
    lines = ["fine . <EOU>", "well and you ? <EOU>", "thanks <EOU>"]
    rollout, engine, tokenizer = played(model, Dialogue(max_turns=2), lines)
    text = "how are you ? <EOU> fine . <EOU> well and you ? <EOU> thanks <EOU>"
    assert tokenizer.decode(list(rollout.tokens)) == text
    trained = [token for token, mask in zip(rollout.tokens, rollout.loss_mask, strict=True) if mask]
    assert tokenizer.decode(trained) == "fine . <EOU> thanks <EOU>"
    assert [tokenizer.decode(list(request.tokens)) for request in engine.requests] == [
        "how are you ? <EOU>",
        "how are you ? <EOU> fine . <EOU>",
        "how are you ? <EOU> fine . <EOU> well and you ? <EOU>",
    ]
    assert rollout.info["turns"] == 2 and rollout.truncated_context


def test_a_copy_that_says_farewell_ends_the_talk(model: Path) -> None:
    lines = ["fine . <EOU>", "bye <EOU>"]
    settings = Dialogue(max_turns=5, end_phrases=("bye",))
    rollout, _, _ = played(model, settings, lines)
    assert len(rollout.turns) == 1 and not rollout.truncated_context


def test_an_utterance_of_the_partner_is_the_worlds(model: Path) -> None:
    lines = ["fine .", "thanks <EOU>"]
    settings = build(Dialogue, {"max_turns": 2, "partner": "talkers:Echo"}, "")
    rollout, _, tokenizer = played(model, settings, lines)
    assert tokenizer.decode(list(rollout.turns[1].observation)) == "<EOU> fine . <EOU>"
    assert tokenizer.decode(list(rollout.truncated_context)).endswith("thanks <EOU> thanks <EOU>")
