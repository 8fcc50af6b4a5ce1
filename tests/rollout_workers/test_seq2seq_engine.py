"""Encoder-decoder models in the transformers engine, against teacher-forced passes and `generate`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import FinishReason, Sampling
from rollout_workers.engines.base import Engine, Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from tests.models import Seq2Seq, make_tiny_model
from tests.rollout_workers.generation import (
    EOS,
    SEQ2SEQ,
    SETTINGS,
    VOCAB,
    WINDOW,
    finish,
    generated_by_transformers,
    load,
    load_lm,
    logprobs_T,
    perturb,
    prompts_of_many_lengths,
    with_sampling,
    worst_difference,
)

TOLERANCE = 1e-4


@pytest.fixture(params=SEQ2SEQ)
def name(request: pytest.FixtureRequest) -> Seq2Seq:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def lm(name: Seq2Seq, models: dict[str, Path]) -> Any:
    return load_lm(models[name])


@pytest.fixture
def engine(name: Seq2Seq, lm: Any, get_engine: Callable[..., Engine]) -> Engine:
    """Idle, with the weights of `lm`."""
    engine = get_engine("transformers", name)
    load(engine, lm, engine.weight_version + 1)
    return engine


def test_logprobs_are_those_of_a_pass_without_padding_or_cache(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(24, max_tokens=40)
    generations = finish(engine, requests)

    assert worst_difference(lm, requests, generations) < TOLERANCE
    lengths = {len(generation.tokens) for generation in generations.values()}
    assert len(lengths) > 6  # rows left the batch at many steps


def test_new_weights_count_from_when_they_are_loaded(engine: Engine, lm: Any, name: Seq2Seq) -> None:
    requests = prompts_of_many_lengths(12)
    old, before = load_lm(Path(lm.config.name_or_path)), engine.weight_version
    perturb(lm, seed=1)
    assert worst_difference(old, requests, finish(engine, requests)) < TOLERANCE

    load(engine, lm, before + 1)
    generations = finish(engine, requests)
    assert (
        worst_difference(lm, requests, generations)
        < TOLERANCE
        < 0.05
        < worst_difference(old, requests, generations)
    )
    assert {version for generation in generations.values() for version in generation.versions} == {before + 1}


def test_an_answer_does_not_depend_on_who_is_generated_beside_it(engine: Engine) -> None:
    requests = prompts_of_many_lengths(12)
    together = finish(engine, requests)
    backwards = finish(engine, reversed(requests))
    alone = {request.id: finish(engine, [request])[request.id] for request in requests}

    for request in requests:
        assert together[request.id].tokens == backwards[request.id].tokens == alone[request.id].tokens
        assert together[request.id].behavior_logprobs == pytest.approx(
            alone[request.id].behavior_logprobs, abs=TOLERANCE
        )


def test_temperature_zero_writes_what_generate_writes(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(12, temperature=0.0, max_tokens=25)
    generations = finish(engine, requests)

    assert [generations[r.id].tokens for r in requests] == generated_by_transformers(lm, requests)
    assert worst_difference(lm, requests, generations) < TOLERANCE


def test_no_end_before_min_tokens_and_the_logprobs_know(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(48, min_tokens=10, max_tokens=15)
    free = finish(engine, with_sampling(requests, min_tokens=0))
    generations = finish(engine, requests)

    assert min(len(generation.tokens) for generation in free.values()) < 10  # or nothing was tested
    assert min(len(generation.tokens) for generation in generations.values()) >= 10
    assert worst_difference(lm, requests, generations) < TOLERANCE


def test_the_start_token_is_not_part_of_the_answer_and_ends_nothing(engine: Engine, lm: Any) -> None:
    generations = finish(engine, prompts_of_many_lengths(48, max_tokens=60)).values()

    stopped = [generation for generation in generations if generation.finish_reason is FinishReason.STOP]
    assert len(stopped) > 12
    for generation in stopped:
        assert generation.tokens.index(EOS) == len(generation.tokens) - 1
        assert "<eos>" not in generation.text
    # BART's start token is its end token: an answer that began with it would be over.
    assert max(len(generation.tokens) for generation in stopped) > 5


def test_a_stop_string_ends_the_answer(engine: Engine) -> None:
    requests = prompts_of_many_lengths(64, max_tokens=12)
    generations = finish(engine, requests)
    # An answer that writes some word for the first time in the middle.
    request, word, length = next(
        (r, word, i + 1)
        for r in requests
        if min(generations[r.id].tokens) > 2  # words only
        for i, word in enumerate(generations[r.id].text.split())
        if 3 <= i < 10 and word not in generations[r.id].text.split()[:i]
    )

    (stopping,) = with_sampling([request], stop=("zz", word))
    cut = finish(engine, [stopping])[request.id]

    assert cut.finish_reason is FinishReason.STOP
    assert cut.tokens == generations[request.id].tokens[:length]
    assert cut.text.split() == generations[request.id].text.split()[: length - 1]


def test_new_weights_in_the_middle_of_an_answer_are_marked(engine: Engine, lm: Any) -> None:
    first = engine.weight_version
    requests = prompts_of_many_lengths(6, min_tokens=8, max_tokens=8)
    for request in requests:
        engine.add(request)
    for _ in range(3):
        engine.step()
    perturb(lm, seed=3)
    load(engine, lm, first + 1)
    generations = finish(engine)

    assert {generation.versions for generation in generations.values()} == {(first,) * 3 + (first + 1,) * 5}
    assert worst_difference(lm, requests, generations) > 0.01  # the first three tokens are the old weights'


def test_the_probe_is_prompt_and_response(engine: Engine, lm: Any) -> None:
    tokens = (5, 9, 0, 7, 1, 12)  # a padding token and an end token are tokens like others

    expected = logprobs_T(lm, tokens, tokens[1:]).tolist()
    assert engine.logprobs([tokens]) == [pytest.approx(expected, abs=TOLERANCE)]


def test_each_prompt_is_encoded_once_and_each_token_decoded_once(engine: Engine) -> None:
    requests = prompts_of_many_lengths(30, max_tokens=30)
    with counted_rows(engine) as rows:
        generations = finish(engine, requests)

    assert rows["encoder"] == 30
    assert rows["decoder"] == sum(len(generation.tokens) for generation in generations.values())


@contextmanager
def counted_rows(engine: Any) -> Iterator[dict[str, int]]:
    """How many rows the engine's encoder and decoder are given."""
    rows = {"encoder": 0, "decoder": 0}

    def counter(side: str) -> Callable[..., None]:
        def count(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            rows[side] += kwargs["input_ids"].shape[0]
            assert side == "encoder" or kwargs["input_ids"].shape[1] == 1

        return count

    sides = {"encoder": engine._lm.get_encoder(), "decoder": engine._lm.get_decoder()}
    hooks = [m.register_forward_pre_hook(counter(side), with_kwargs=True) for side, m in sides.items()]
    yield rows
    for hook in hooks:
        hook.remove()


def test_prompts_of_a_length_are_read_together_and_none_waits_for_ever(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(models["t5"])
    engine = TransformersEngine(folder, folder, None, SETTINGS.model_copy(update={"max_concurrent": 4}))
    shapes: list[tuple[int, ...]] = []
    engine._lm.get_encoder().register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    long = [Request(i, tuple(range(3, 15)), Sampling(max_tokens=2), i) for i in range(0, 8, 2)]
    short = [Request(i, (5,), Sampling(max_tokens=2), i) for i in range(1, 8, 2)]
    mixed = sorted(long + short, key=lambda request: request.id)
    for request in mixed:
        engine.add(request)
    while engine.num_unfinished:
        engine.step()
        if shapes == [(4, 12)]:  # whoever waits longest is in the next batch, however many short ones come
            shapes.append((0, 0))
            for i in range(8, 20):
                engine.add(Request(i, (6,), Sampling(max_tokens=2), i))

    assert shapes == [(4, 12), (0, 0), (4, 1), (4, 1), (4, 1), (4, 1)]


def test_of_the_models_generation_settings_only_the_end_tokens_count(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, architecture="bart", vocab=VOCAB, window=WINDOW, sharpness=7.5)
    lm = load_lm(tmp_path)
    settings = lm.generation_config
    settings.forced_bos_token_id = 7
    settings.suppress_tokens = [5, 6, 8, 9]
    settings.no_repeat_ngram_size = 2
    settings.repetition_penalty = 3.0
    settings.do_sample, settings.top_k = True, 2
    settings.eos_token_id = [1, 4]
    settings.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path), str(tmp_path), None, SETTINGS)

    requests = prompts_of_many_lengths(40)
    generations = finish(engine, requests)
    assert worst_difference(lm, requests, generations) < TOLERANCE
    written = {token for generation in generations.values() for token in generation.tokens}
    assert {5, 6, 8, 9} <= written and len({g.tokens[0] for g in generations.values()}) > 2
    ends = [g.tokens[-1] for g in generations.values() if g.finish_reason is FinishReason.STOP]
    assert set(ends) == {1, 4} and len(ends) >= 12
    assert all(not {1, 4} & set(generation.tokens[:-1]) for generation in generations.values())


def test_prompt_and_answer_have_a_window_each(models: dict[str, Path]) -> None:
    folder = str(models["bart"])
    engine = TransformersEngine(folder, folder, 12, SETTINGS)
    request = Request(0, tuple(range(3, 15)), Sampling(max_tokens=40, min_tokens=40), seed=1)
    generation = finish(engine, [request])[0]

    assert len(generation.tokens) == 12 and generation.finish_reason is FinishReason.LENGTH
    with pytest.raises(InputError, match=r"prompt of 13 tokens .* window of 12.*max_prompt_tokens"):
        engine.add(replace(request, tokens=(*request.tokens, 3)))


@pytest.mark.parametrize(("name", "longest"), [("bart", WINDOW), ("t5", WINDOW + 9)])
def test_long_answers_are_right_to_the_last_token(engine: Engine, lm: Any, longest: int) -> None:
    """BART's end with its window; T5's positions are relative, and it has none."""
    requests = prompts_of_many_lengths(8, min_tokens=100, max_tokens=WINDOW + 9)
    requests[:1] = with_sampling(requests[:1], min_tokens=WINDOW + 9)
    generations = finish(engine, requests)

    assert len(generations[0].tokens) == longest
    assert min(len(generation.tokens) for generation in generations.values()) < longest
    assert worst_difference(lm, requests, generations) < TOLERANCE


def test_a_model_without_a_start_token_is_refused(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, architecture="t5")
    lm = load_lm(tmp_path)
    lm.config.decoder_start_token_id = lm.generation_config.decoder_start_token_id = None
    lm.save_pretrained(tmp_path)

    with pytest.raises(InputError, match="decoder_start_token_id"):
        TransformersEngine(str(tmp_path), str(tmp_path), None, SETTINGS)
