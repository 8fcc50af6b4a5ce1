"""A frozen partner with a chat template: it is the assistant, and the model that is trained is its user."""

from pathlib import Path
from typing import Any

import pytest

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt
from contracts.settings import build
from rollout_workers.engines.base import Generation
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.environments.dialogue import Dialogue, utterance_seed
from rollout_workers.environments.frozen_partner import FrozenPartner
from rollout_workers.environments.partner_texts import TalkByTemplate
from tests.chat_templates import TEMPLATES, TEXTS, chat_tokenizer, make_chat_model

# Opened by the partner, so that the model's are the first and third, and the partner's second is asked for.
TALK = ("How are you ?", "Fine, and you ?")
SECOND = (*TALK, "Fine.", "Good.")


def texts(name: str, **form: Any) -> tuple[Any, TalkByTemplate]:
    its = chat_tokenizer(TEXTS[name])
    return its, TalkByTemplate(its, Chat(its, ChatForm(**form)), "")


def as_template(its: Any, talk: list[dict[str, str]]) -> tuple[int, ...]:
    return tuple(its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False))


def views(its: Any, history: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The talk as the partner has it, alone and after an opening of the user's."""
    roles = ("assistant", "user") if len(history) % 2 == 0 else ("user", "assistant")
    talk = [{"role": roles[place % 2], "content": utterance} for place, utterance in enumerate(history)]
    contexts = []
    for messages in (talk, [{"role": "user", "content": "…"}, *talk]):
        try:
            contexts.append(
                tuple(its.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
            )
        except Exception:
            contexts.append(())
    return contexts


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("history", [TALK, SECOND, ("Hello !",), ("Hello !", *TALK)])
def test_the_partner_reads_the_talk_as_its_template_writes_it(name: str, history: tuple[str, ...]) -> None:
    its, layout = texts(name)
    alone, opened = views(its, history)
    read = layout.tokens(history, 10_000)
    assert read == (alone or opened)
    must_alternate = name in ("refuses_system", "gemma", "gemma3")
    assert bool(alone) is (len(history) % 2 == 1 or not must_alternate)
    assert layout.tokens((), 99) == layout.tokens(("", " "), 99) == ()  # nothing to answer


def test_it_has_a_system_message_and_options_of_its_own() -> None:
    its, layout = texts("strips_reasoning", system="Ask much.", options={"enable_thinking": False})
    text = its.decode(layout.tokens(TALK, 999))
    assert text.startswith("<|start|>system\nAsk much.<|stop|>\n<|start|>assistant\n")
    assert text.endswith("user\nFine, and you ?<|stop|>\n<|start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(InputError, match="System role not supported"):
        texts("refuses_system", system="Ask much.")


def test_a_longer_talk_loses_its_oldest_utterances() -> None:
    _, layout = texts("default_system")
    whole, shorter = layout.tokens(SECOND, 999), layout.tokens(SECOND[1:], 999)
    assert layout.tokens(SECOND, len(whole)) == whole
    assert layout.tokens(SECOND, len(whole) - 1) == shorter
    assert layout.tokens(SECOND, 5) == layout.tokens(SECOND[3:], 999)[-5:]


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Well .<|stop|>\n<|start|>user\nNo !", "Well ."),
        ("<think>\nHm.\n</think>\n\nWell .<eos>", "Well ."),
        ("Well .", "Well ."),
    ],
)
def test_of_what_it_writes_the_answer_is_heard(written: str, heard: str) -> None:
    its, layout = texts("strips_reasoning")
    tokens = tuple(its(written, add_special_tokens=False)["input_ids"])
    nothing = ((0.0,) * len(tokens), (0,) * len(tokens))
    assert layout.heard(Generation(0, tokens, "", *nothing, FinishReason.STOP)) == heard


def test_nobody_hears_a_thought() -> None:
    _, layout = texts("default_system")
    talk = ("How are you ?", "<think>Say nothing.</think> Fine.")
    assert layout.tokens(talk, 999) == layout.tokens(("How are you ?", "Fine."), 999)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("partner") / "model", TEMPLATES["default_system"])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Texts that a real engine reads."""
    contexts: list[tuple[int, ...]] = []
    add = TransformersEngine.add

    def adding(engine: TransformersEngine, request: Any) -> None:
        contexts.append(request.tokens)
        add(engine, request)

    monkeypatch.setattr(TransformersEngine, "add", adding)
    return contexts


def dialogue(model: Path, **chat: Any) -> Dialogue:
    options = {"model": str(model), "max_tokens": 4, **({"chat": chat} if chat else {})}
    return build(Dialogue, {"partner": "frozen", "partner_options": options}, "environment")


def test_a_talk_is_read_by_templates_on_both_sides(model: Path, read: list[tuple[int, ...]]) -> None:
    """The system message is the model's own; the partner does not hear it."""
    its = chat_tokenizer(TEMPLATES["default_system"])
    talk = dialogue(model).laid_out(by_template=True).make()
    system = {"role": "system", "content": "Be brief."}
    talk.reset(Prompt("p", TALK[0], meta={"messages": [system, {"role": "user", "content": TALK[0]}]}), 5)
    step = talk.step(TALK[1])
    assert read == [views(its, TALK)[0]]
    assert "<" not in step.observation.text
    speaker = FrozenPartner(model=str(model), max_tokens=4).load("", by_template=True)
    assert step.observation.text.strip() == speaker.reply(TALK, utterance_seed(5, 1)).strip()


@pytest.mark.parametrize(
    ("by_template", "chat", "reads_so"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"template": "none"}, False),
        (False, {"template": "tokenizer"}, True),
    ],
)
def test_which_partner_reads_by_its_template(
    model: Path, read: list[tuple[int, ...]], by_template: bool, chat: dict[str, str], reads_so: bool
) -> None:
    talk = dialogue(model, **chat).laid_out(by_template=by_template).make()
    talk.reset(Prompt("p", TALK[0]), 5)
    talk.step(TALK[1])
    its = chat_tokenizer(TEMPLATES["default_system"])
    separator = "" if by_template else " <EOU>"
    plain = "".join(f" {utterance}{separator}" for utterance in TALK).strip()
    assert read == [views(its, TALK)[0] if reads_so else tuple(its(plain)["input_ids"])]


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (
            {"template": "tokenizer"},
            r"partner_options.chat.template=tokenizer: the tokenizer of .* has no chat",
        ),
        (
            {"system": "Hi."},
            r"partner_options.chat.system is for a chat template, but this partner reads plain",
        ),
    ],
)
def test_a_template_that_is_not_there_is_told_before_the_start(
    model: Path, tmp_path: Path, chat: dict[str, str], message: str
) -> None:
    from learner.settings import ModelSettings
    from rollout_workers.settings import RolloutSettings
    from services.models.files import read_model
    from services.training.preflight.checks.environment_checks import check_environment

    bare = make_chat_model(tmp_path / "bare", None)
    files = read_model(ModelSettings(path=str(model)))
    with pytest.raises(InputError, match=message):
        check_environment(dialogue(bare, **chat), "dialogue", RolloutSettings(), str(model), files)
    with pytest.raises(InputError, match=message):
        build(FrozenPartner, {"model": str(bare), "chat": chat}, "").load("<EOU>")
