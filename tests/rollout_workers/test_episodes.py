"""Many turns in tokens: what the model sees, what counts as its own, what is left when a window is full."""

import math
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.rollout import FinishReason, Rollout
from tests.rollout_workers.episodes import Told, WritingEngine, lease, play

WORDS = ("one", "two", "look", "go", "east", "door", "over", "<EOU>", "?")
KINDS = ("words", "bytes", "pieces")
SENTENCES = st.lists(st.sampled_from(WORDS[:-2]), min_size=1, max_size=6).map(" ".join)


@cache
def tokenizer(kind: str) -> Any:
    """Words split at blanks · byte-level BPE, as GPT-2's · sentence pieces after a <bos>, as Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    corpus = [" ".join(random.Random(i).choices(WORDS, k=12)) for i in range(200)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    if kind == "words":
        bare = Tokenizer(
            models.WordLevel({word: i for i, word in enumerate([*special, *WORDS])}, unk_token="<unk>")
        )
        bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif kind == "bytes":
        bare = Tokenizer(models.BPE())
        bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bare.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        bare.train_from_iterator(
            corpus,
            trainers.BpeTrainer(
                vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
            ),
        )
    else:
        bare = Tokenizer(models.Unigram())
        bare.pre_tokenizer = pre_tokenizers.Metaspace()
        bare.decoder = decoders.Metaspace()
        bare.train_from_iterator(
            corpus,
            trainers.UnigramTrainer(
                vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False
            ),
        )
        bare.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )


def own_tokens(rollout: Rollout) -> list[int]:
    return [token for token, mine in zip(rollout.tokens, rollout.loss_mask, strict=True) if mine]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    says=st.lists(SENTENCES, min_size=1, max_size=6),
    memory=st.sampled_from([None, 0, 1, 3]),
    window=st.sampled_from([24, 40, 4096]),
    by_model=st.sets(st.integers(0, 5)),
    reply_end=st.sampled_from(["", "<EOU>"]),
    seed=st.integers(0, 999),
)
def test_the_mask_covers_exactly_the_models_tokens(
    kind: str,
    says: list[str],
    memory: int | None,
    window: int,
    by_model: set[int],
    reply_end: str,
    seed: int,
) -> None:
    draw = random.Random(seed)
    its = tokenizer(kind)

    def write(request: Any) -> tuple[int, ...]:
        return tuple(draw.randrange(4, len(its)) for _ in range(draw.randint(1, 8)))

    engine = WritingEngine(its, window, write)
    script = Told(
        says=tuple(says), header="look go", memory=memory, by_model=tuple(by_model), reply_end=reply_end
    )
    (rollout,) = play(script, engine, [lease()])

    # requests and answers alternate with those of the model's copy
    is_partners = [i for index in range(len(says)) for i in ([True, False] if index in by_model else [False])]
    answers = [
        (request, written)
        for request, written, partners in zip(engine.requests, engine.written, is_partners, strict=True)
        if not partners
    ]
    assert own_tokens(rollout) == [token for _, written in answers for token in written]
    for index, (request, written) in enumerate(answers):
        assert rollout.context(index) == request.tokens
        assert rollout.turns[index].tokens == written
        assert len(request.tokens) + 8 <= max(window, 10)
    if memory is None and window == 4096:
        assert len(rollout.segments) == 1
    if memory is not None:
        assert all(turn.fresh for turn in rollout.turns)


def plays(script: Told, window: int | None = None, answer: tuple[int, ...] = (6, 7)) -> Any:
    engine = WritingEngine(tokenizer("words"), window, lambda request: answer)
    (rollout,) = play(script, engine, [lease()])
    return rollout, engine


def text(tokens: tuple[int, ...]) -> str:
    return str(tokenizer("words").decode(list(tokens)))


def test_a_growing_sequence_appends_and_never_repeats() -> None:
    rollout, engine = plays(Told(header="door", says=("one", "two")))

    assert text(rollout.tokens) == "door one look go two look go"
    assert rollout.loss_mask == (0, 0, 1, 1, 0, 1, 1)
    assert [text(request.tokens) for request in engine.requests] == ["door one", "door one look go two"]
    assert [turn.reward for turn in rollout.turns] == [1.0, 1.0]
    assert (rollout.finish_reason, rollout.info) == (FinishReason.STOP, {"steps": 2.0})
    assert rollout.truncated_context == ()


@pytest.mark.parametrize("memory", [None, 1])
def test_an_empty_answer_is_closed_as_any_other(memory: int | None) -> None:
    script = Told(header="door", says=("one", "two"), reply_end="<EOU>", memory=memory)
    _, engine = plays(script, answer=())
    assert [text(request.tokens) for request in engine.requests] == ["door one", "door one <EOU> two"]


def test_memory_keeps_the_header_the_last_turns_and_forgets_their_hints() -> None:
    script = Told(header="door", says=("one", "two", "over"), hint=" ? east", memory=1)
    rollout, engine = plays(script)

    assert [text(request.tokens) for request in engine.requests] == [
        "door one ? east",
        "door one look go two ? east",
        "door two look go over ? east",
    ]
    assert [text(turn.observation) for turn in rollout.turns] == [text(r.tokens) for r in engine.requests]


def test_no_memory_shows_the_observation_alone() -> None:
    _, engine = plays(Told(header="door", says=("one", "two"), memory=0))
    assert [text(request.tokens) for request in engine.requests] == ["door one", "door two"]


def test_a_full_window_begins_afresh_with_recent_turns_in_half_of_it() -> None:
    rollout, engine = plays(Told(header="door", says=("one",) * 6), window=18)  # room for 10 tokens

    lengths = [len(request.tokens) for request in engine.requests]
    assert lengths == [2, 5, 8, 5, 8, 5]
    assert [len(segment) for segment in rollout.segments] == [3, 2, 1]
    assert text(engine.requests[3].tokens) == "door one look go one"


def test_an_observation_longer_than_the_window_keeps_its_end_and_is_counted() -> None:
    rollout, engine = plays(Told(header="door", says=("one " * 30 + "east",)), window=18)

    assert text(engine.requests[0].tokens) == "door" + " one" * 8 + " east"
    assert rollout.info["observations_cut"] == 1.0


def test_a_reply_that_lacks_its_end_is_closed_by_the_world() -> None:
    rollout, _ = plays(Told(says=("one", "two"), reply_end="<EOU>"))
    assert text(rollout.tokens) == "one look go <EOU> two look go"
    assert rollout.loss_mask == (0, 1, 1, 0, 0, 1, 1)

    rollout, engine = plays(Told(says=("one", "two"), reply_end="<EOU>"), answer=(6, 11))
    assert text(rollout.tokens) == "one look <EOU> two look <EOU>"
    assert engine.requests[0].sampling.stop == ("<EOU>",)


def test_the_models_copy_speaks_and_is_not_trained() -> None:
    rollout, engine = plays(Told(says=("one", "two"), by_model=(1,), reply_end="<EOU>"))

    assert text(rollout.tokens) == "one look go <EOU> look go <EOU> look go"
    assert rollout.loss_mask == (0, 1, 1, 0, 0, 0, 0, 1, 1)
    assert len(engine.requests) == 3 and len({request.seed for request in engine.requests}) == 3
    assert rollout.turns[1].observation_text == "look go"


def test_an_episode_that_is_cut_off_leaves_what_the_model_would_have_seen() -> None:
    rollout, _ = plays(Told(says=("one", "two", "over"), max_turns=2))
    assert rollout.finish_reason is FinishReason.CUT  # no limit of tokens was reached
    assert text(rollout.truncated_context) == "one look go two look go over"

    rollout, _ = plays(Told(says=("one",), truncates=True))
    assert text(rollout.truncated_context) == "one look go over"


def test_expert_and_random_play_without_the_engine() -> None:
    script = Told(says=("one", "two"), actions=("go", "look"), expert="go east")
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    (expert,) = play(script, engine, [lease(player="expert")])
    (chance,) = play(script, engine, [lease(player="random")])

    assert engine.requests == []
    assert [turn.text for turn in expert.turns] == ["go east", "go east"]
    assert text(expert.turns[0].tokens) == "go east <eos>"
    assert {turn.text for turn in chance.turns} <= {"go", "look"}
    (lost,) = play(Told(says=("one",)), engine, [lease(player="expert")])
    assert lost.finish_reason is FinishReason.FAILED and "names no expert action" in str(lost.error)


def test_an_example_turn_is_the_worlds_and_its_reward_the_turns_before() -> None:
    script = Told(says=("one",) * 8, actions=("east",))
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    (rollout,) = play(script, engine, [lease(example_rate=0.5)])

    assert 1 < len(rollout.turns) < 8
    assert "[east]" in rollout.turns[1].observation_text
    assert sum(turn.reward or 0 for turn in rollout.turns) == 8.0
    assert own_tokens(rollout) == [6] * len(rollout.turns)


def test_return_conditioned_contexts_begin_with_the_return_that_came() -> None:
    script = Told(header="door", says=("one", "two", "over"), memory=0, target_return=9.0)
    its = tokenizer("bytes")
    engine = WritingEngine(its, None, lambda request: (30,))
    (rollout,) = play(script, engine, [lease()])

    contexts = [its.decode(list(request.tokens)) for request in engine.requests]
    assert all(text.startswith("A play with a return of 9.\ndoor") for text in contexts)
    trained = [its.decode(list(turn.observation)) for turn in rollout.turns]
    assert [text.partition("\n")[0][-2:] for text in trained] == ["3.", "2.", "1."]
    assert [text.partition("\n")[2] for text in trained] == [text.partition("\n")[2] for text in contexts]


def test_leases_beyond_the_seats_wait_and_all_come_back() -> None:
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    rollouts = play(Told(num_parallel=2), engine, [lease(number) for number in range(7)])
    assert [rollout.lease_id for rollout in rollouts] == list(range(7))


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"says": ("one", "two"), "odd_reward": math.nan}, "step() gave reward=nan"),
        ({"says": ("one", "two"), "odd_text": True}, "step() gave Observation(text=None"),
        ({"says": ("",)}, "the model has nothing to read"),
    ],
)
def test_what_an_environment_gets_wrong_fails_its_episode_and_no_other(option: Any, reason: str) -> None:
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    odd = Told(max_attempts=1, **option)
    (rollout,) = play(odd, engine, [lease()])
    assert rollout.finish_reason is FinishReason.FAILED and reason in str(rollout.error)


def test_an_experts_answer_that_would_lose_its_end_is_refused() -> None:
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    (rollout,) = play(Told(expert="go east go east"), engine, [lease(player="expert", max_tokens=4)])
    assert "has 5 tokens with its end token, but rollout.max_tokens=4; set it to 5 or more" in str(
        rollout.error
    )


def test_a_longer_return_and_a_long_header_stay_within_the_window() -> None:
    script = Told(header="door " * 60, says=("one",) * 3, memory=0, target_return=9.0, odd_reward=-1 / 3)
    engine = WritingEngine(tokenizer("bytes"), 80, lambda request: (30,))
    (rollout,) = play(script, engine, [lease()])
    assert all(len(turn.observation) + 8 <= 80 for turn in rollout.turns)


def test_a_return_of_nothing_is_not_a_negative_one() -> None:
    script = Told(header="door", says=("one",) * 2, memory=0, target_return=9.0, odd_reward=-0.0)
    its = tokenizer("bytes")
    (rollout,) = play(script, WritingEngine(its, None, lambda request: (30,)), [lease()])
    assert its.decode(list(rollout.turns[0].observation)).startswith("A play with a return of 0.\n")
