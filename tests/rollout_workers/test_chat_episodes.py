"""Episodes by chat templates: training uses the sampled tokens, with recorded or rendered histories."""

import random
from typing import Any

import pytest

from benchmarks.studies.templates import model_of
from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Lease, Rollout
from rollout_workers.environments.pool import LocalEnvironments
from rollout_workers.episodes import Episodes
from rollout_workers.settings import RolloutSettings
from tests.chat_templates import TEMPLATES, TEXTS, chat_tokenizer
from tests.contracts.test_chat_answers import TEMPLATES as ANSWERS
from tests.rollout_workers.episodes import Told, Write, WritingEngine, lease

SAYS = ("What is three and four ?", "And then ?", "Thanks, that is the end")
USER = [{"role": "user", "content": text} for text in SAYS]


def play(its: Any, form: ChatForm, script: Told, write: Write, window: int | None = None) -> Rollout:
    engine = WritingEngine(its, window, write)
    settings = RolloutSettings(max_tokens=16)
    environments = LocalEnvironments(script)
    episodes = Episodes(script, environments, engine, settings, form)  # type: ignore[arg-type]
    episodes.admit([lease()])
    for _ in range(100):
        requests, finished = episodes.advance(engine_is_idle=True)
        if finished:
            assert finished[0].error is None
            return finished[0]
        episodes.on_generations([engine.answer(request) for request in requests])
    raise AssertionError("the episode does not end")


def writes(its: Any, *texts: str) -> Write:
    """Write these texts, one after the other."""
    left = iter(texts)
    return lambda _: tuple(its(next(left), add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("history", ["recorded", "template"])
def test_trained_tokens_are_the_sampled_ones(name: str, history: str) -> None:
    """Drawn at random: pairs of tokens that a tokenizer would write as one are among them."""
    its = chat_tokenizer(TEXTS[name])
    drawn: list[tuple[int, ...]] = []
    dice = random.Random(5)
    letters = its("thinou t", add_special_tokens=False)["input_ids"] + list(its("a b\n")["input_ids"][1:])
    letters += [its.convert_tokens_to_ids(letter) for letter in "thinou"]

    def write(_: Any) -> tuple[int, ...]:
        drawn.append(tuple(dice.choices(letters, k=dice.randint(1, 12))))
        return drawn[-1]

    form = ChatForm(follows_template=history == "template")
    rollout = play(its, form, Told(says=SAYS, template="chat"), write)
    assert [turn.tokens for turn in rollout.turns] == drawn
    first = Chat(its, form).tokens(USER[:1])
    assert rollout.turns[0].observation == rollout.context(0) == first
    if history == "recorded":  # one sequence, in which every answer stands as it was drawn
        assert len(rollout.segments) == 1
        assert rollout.context(2)[: len(first) + len(drawn[0])] == first + drawn[0]
    made_tokens = [token for token, mine in zip(rollout.tokens, rollout.loss_mask, strict=True) if mine]
    assert made_tokens == [token for answer in drawn for token in answer]


@pytest.mark.parametrize("name", TEXTS)
def test_a_history_as_rendered_is_what_the_template_writes_at_every_turn(name: str) -> None:
    its = chat_tokenizer(TEXTS[name])
    form = ChatForm(follows_template=True)
    chat = Chat(its, form)
    answers = [{"role": "assistant", "content": text} for text in ("It is seven.", "Nothing.", "Bye.")]
    written = (str(its.decode(chat.answer(message["content"]))) for message in answers)
    rollout = play(its, form, Told(says=SAYS, template="chat"), writes(its, *written))
    for turn in range(3):
        talk = [message for pair in zip(USER, answers, strict=True) for message in pair][: 2 * turn + 1]
        context = its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
        assert rollout.context(turn) == tuple(context)


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize("name", ["lazy", "GLM draws"])
def test_an_answers_end_stands_once_where_the_template_writes_it_late_or_never(
    name: str, memory: int | None
) -> None:
    """The second answer hits its limit; the others end with the token at which the model stops."""
    model = model_of(name, ANSWERS[name])
    its, before, end = model.tokenizer, *(("\n", "<|user|>") if name == "GLM draws" else ("", "<|im_end|>"))
    script = Told(says=SAYS, template="chat", memory=memory)
    form = ChatForm(ends=model.stops)
    rollout = play(its, form, script, writes(its, f"{before}seven{end}", f"{before}ten", f"bye{end}"))
    answers = [{"role": "assistant", "content": text} for text in ("seven", "ten")]
    talk = [USER[0], answers[0], USER[1], answers[1], USER[2]]
    for turn, (first, last) in enumerate([(0, 1), (0, 3), (0 if memory is None else 2, 5)]):
        context = its.apply_chat_template(talk[first:last], tokenize=False, add_generation_prompt=True)
        assert its.decode(rollout.context(turn)) == context


def test_a_template_that_drops_reasoning_splits_the_episode() -> None:
    its = chat_tokenizer(TEMPLATES["strips_reasoning"])
    thought = ("<think>\nthree plus four\n</think>\n\nseven<|stop|>", "ten<|stop|>", "bye<|stop|>")
    script = Told(says=SAYS, template="chat")
    recorded = play(its, ChatForm(), script, writes(its, *thought))
    assert len(recorded.segments) == 1 and "three plus four" in its.decode(recorded.context(2))
    rendered = play(its, ChatForm(follows_template=True), script, writes(its, *thought))
    # The second turn's context lacks the thought; the third's appends to the second's.
    assert [len(segment) for segment in rendered.segments] == [1, 2]
    assert "three plus four" not in its.decode(rendered.context(1))
    assert its.decode(rendered.context(1)).endswith(
        "assistant\nseven<|stop|>\n" + its.decode(Chat(its, ChatForm()).turn(USER[1:2]))
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("history", ["recorded", "template"])
def test_a_header_is_the_system_message_where_there_is_a_place_for_it(name: str, history: str) -> None:
    its = chat_tokenizer(TEMPLATES[name])
    form = ChatForm(follows_template=history == "template")
    script = Told(says=SAYS, header="Be brave.", memory=1, template="chat")
    rollout = play(its, form, script, writes(its, "east", "west", "north"))
    system = {"role": "system", "content": "Be brave."}
    in_front = {"role": "user", "content": f"Be brave.\n\n{SAYS[0]}"}
    talk = [in_front] if name == "refuses_system" else [system, USER[0]]
    assert rollout.context(0) == Chat(its, form).tokens(talk)
    for turn in range(3):  # each turn is fresh, with one turn of memory
        text = its.decode(rollout.context(turn))
        assert (text.count("Be brave."), text.count(SAYS[turn])) == (1, 1)
        assert all(
            (utterance in text) == (turn - index in (0, 1))
            for index, utterance in enumerate(SAYS[: turn + 1])
        )
        assert text.count("<bos>") == ("bos_token" in TEMPLATES[name])
        assert text.count("<start_of_turn>user") == ("start_of_turn" in text) * min(turn + 1, 2)


def test_a_window_that_is_full_keeps_the_last_turns() -> None:
    its = chat_tokenizer(TEMPLATES["default_system"])
    long = play(its, ChatForm(), Told(says=SAYS, template="chat"), writes(its, "a" * 16, "b" * 16, "c"), 150)
    assert any(turn.fresh for turn in long.turns[1:])
    assert all(len(long.context(turn)) <= 150 - 16 for turn in range(3))
    assert its.decode(long.context(2)).endswith("<|start|>assistant\n")


def test_a_prompt_that_is_a_conversation_begins_a_dialogue_by_its_roles() -> None:
    from rollout_workers.environments.dialogue import Dialogue

    its = chat_tokenizer(TEMPLATES["default_system"])
    talk = [
        {"role": "system", "content": "Be brief."},
        USER[0],
        {"role": "assistant", "content": "7"},
        USER[1],
    ]
    settings = Dialogue(partner="tests.rollout_workers.test_chat_episodes:Echo", max_turns=2)
    laid_out = settings.laid_out(by_template=True)
    assert (settings.template, laid_out.template, laid_out.separator, laid_out.reply_end) == (
        "auto",
        "chat",
        "",
        "",
    )
    game = lease()
    from dataclasses import replace

    opened: Lease = replace(game, prompt=replace(game.prompt, meta={"messages": talk}))
    engine = WritingEngine(its, None, writes(its, "one", "two"))
    episodes = Episodes(
        laid_out, LocalEnvironments(laid_out), engine, RolloutSettings(max_tokens=16), ChatForm()
    )  # type: ignore[arg-type]
    episodes.admit([opened])
    done: list[Rollout] = []
    while not done:
        requests, done = episodes.advance(engine_is_idle=True)
        episodes.on_generations([engine.answer(request) for request in requests])
    expected = its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    assert done[0].context(0) == tuple(expected)
    text = its.decode(done[0].context(1))
    assert text.endswith("one<|stop|>\n<|start|>user\none, you say<|stop|>\n<|start|>assistant\n")


class Echo:
    """A partner that repeats what it heard."""

    def reply(self, history: list[str], seed: int) -> str:
        return f"{history[-1]}, you say"
