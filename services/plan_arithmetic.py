"""The arithmetic of a run in words: what an iteration is made of, and what all of them come to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.rollout import Sampling
from learner.algorithms.base import Selects, learns_from
from learner.algorithms.trpo import TRPO
from learner.dropout import rates
from services.mixed_source import mixture
from services.settings import RunSettings
from services.tasks.base import Split


@dataclass(frozen=True, slots=True)
class Batch:
    """What one iteration trains on: how it comes about, and how many rollouts that are.

    Example: `Batch("64 prompts × 8 responses = 512 rollouts of at most 48 tokens", 512, 64)`
    """

    words: str
    num_rollouts: int
    num_prompts: int  # of the task's, that an iteration takes
    is_exact: bool = True  # else there may be more

    @property
    def bound(self) -> str:
        return "" if self.is_exact else "at least "


def arithmetic(settings: RunSettings, num_prompts: Mapping[Split, int]) -> dict[str, str]:
    """A sentence for each: `iteration`, `update`, `run`, `evaluation`, `checkpoints`."""
    found = batch(settings)
    return {
        "iteration": found.words,
        "update": _update(settings, found),
        "run": _run(settings, found, num_prompts),
        "evaluation": _evaluation(settings, num_prompts),
        "checkpoints": _checkpoints(settings),
    }


def dropout(settings: RunSettings, config: Mapping[str, Any]) -> str:
    """Say whether updates run with dropout, for which reason, and at which rates of the model's config.json.

    Example: "on, as supervised was published: attn_pdrop 0.1, embd_pdrop 0.1, resid_pdrop 0.1"
    """
    asked, adapter = settings.model.dropout, settings.model.adapter
    reason = f"as {settings.algorithm_name} was published" if asked is None else "as asked for"
    told = f"off, {reason}"
    if settings.model.drops_out(settings.algorithm):
        found = ", ".join(f"{name} {rate:g}" for name, rate in sorted(rates(config).items()))
        told = f"on, {reason}: {found}"
        if not found:
            told = f"none, for config.json names no rate above 0 (with one: on, {reason})"
    if adapter.trains and adapter.lora_dropout:
        told += f"; in the adapter {adapter.lora_dropout:g}"
    return told


def batch(settings: RunSettings) -> Batch:
    """What one iteration begins with."""
    count, each = settings.rollout.prompts_per_iteration, settings.group_size
    if settings.data is not None:
        return _batch_of_data(settings, count, each)
    lengths = _lengths(settings)
    if learns_from(settings.algorithm) == "references":
        if settings.plays:
            return Batch(f"{_many(count, 'episode')}{lengths}, played by an expert", count, count)
        words = f"{_many(count, 'prompt')} with a reference{lengths} each, more where one has several"
        return Batch(words, count, count, is_exact=False)
    return Batch(f"{_product(settings, count, each)}{lengths}", count * each, count)


def optimizer_steps(settings: RunSettings, num_rollouts: int) -> tuple[int, int]:
    """(steps of an epoch, steps of an update) where nothing ends an update early."""
    algorithm, each = settings.algorithm, settings.group_size
    size = algorithm.minibatch_size or num_rollouts
    if getattr(algorithm, "whole_groups", False):
        group = settings.data.num_responses if settings.data is not None else each
        a_epoch = math.ceil(num_rollouts // group / max(1, size // group))
    else:
        a_epoch = math.ceil(num_rollouts / size)
    return a_epoch, a_epoch * algorithm.num_epochs


def evaluations(settings: RunSettings) -> tuple[int, int]:
    """How often validation and test prompts are answered: before the first iteration, after the last, and
    validation every so often in between.
    """
    last, every = settings.iterations, settings.evaluate_every
    between = (last - 1) // every if every else 0
    return 2 + between, 2


def checkpoints(settings: RunSettings) -> int:
    """How many are written: every so often, and after the last iteration."""
    last, every = settings.iterations, settings.save_every
    return 1 + ((last - 1) // every if every else 0)


def _batch_of_data(settings: RunSettings, count: int, each: int) -> Batch:
    from services.data_needs import needs_of

    data = settings.data
    assert data is not None
    responses = needs_of(settings, data).num_responses
    if data.share is None:
        if responses == 1:
            return Batch(f"{_many(count, 'response')} of the data set", count, 0)
        words = (
            f"{count} prompts of the data set × {responses} responses = {_many(count * responses, 'rollout')}"
        )
        return Batch(words, count * responses, 0)
    mixed = mixture(data.share, count, each, responses)
    own, from_data = mixed.num_prompts * each, mixed.num_examples * responses
    product = f"{_product(settings, mixed.num_prompts, each)}{_lengths(settings)}"
    return Batch(f"{product}, and {from_data:,} of the data set", own + from_data, mixed.num_prompts)


def _product(settings: RunSettings, num_prompts: int, each: int) -> str:
    made = "episode" if settings.plays else "rollout"
    word = "response" if not settings.plays else "try"
    plural = "responses" if not settings.plays else "tries"
    return (
        f"{_many(num_prompts, 'prompt')} × {each} {word if each == 1 else plural} = "
        f"{_many(num_prompts * each, made)}"
    )


def _lengths(settings: RunSettings) -> str:
    tokens = settings.rollout.max_tokens
    if settings.plays:
        turns = settings.environment.max_turns
        return f" of at most {_many(turns, 'turn')} of {tokens:,} tokens"
    return f" of at most {tokens:,} tokens"


def _update(settings: RunSettings, found: Batch) -> str:
    algorithm, num = settings.algorithm, found.num_rollouts
    chosen = "what it selects of " if _selects(settings) else ""
    a_epoch, steps = optimizer_steps(settings, num)
    budget = f"micro-batches of at most {settings.learner.token_budget:,} tokens"
    if isinstance(algorithm, TRPO):
        return f"one step within the trust region, and {_many(steps, 'step')} of the critic, in {budget}"
    size = min(algorithm.minibatch_size or num, num)
    told = f"{_bound(settings, found)}{_many(steps, 'optimiser step')}"
    return (
        f"{chosen}{_many(num, 'rollout')} in minibatches of {size:,} = {_many(a_epoch, 'minibatch')} × "
        f"{_many(algorithm.num_epochs, 'epoch')} = {told}, in {budget}"
    )


def _selects(settings: RunSettings) -> bool:
    """Whether an update may leave out some of its rollouts."""
    algorithm = settings.algorithm
    return isinstance(algorithm, Selects) and bool(getattr(algorithm, "drop_constant_groups", True))


def _bound(settings: RunSettings, found: Batch) -> str:
    """Of the number of optimiser steps."""
    ends_early = settings.algorithm.target_kl is not None
    return "at most " if ends_early or _selects(settings) else found.bound


def _run(settings: RunSettings, found: Batch, num_prompts: Mapping[Split, int]) -> str:
    count = settings.iterations
    steps = count * optimizer_steps(settings, found.num_rollouts)[1]
    told = f" and {_bound(settings, found)}{_many(steps, 'optimiser step')}"
    if isinstance(settings.algorithm, TRPO):
        told = f", {_many(count, 'step')} within the trust region and {steps:,} of the critic"
    rollouts = f"{found.bound}{_many(count * found.num_rollouts, 'rollout')}"
    return f"{_many(count, 'iteration')} = {rollouts}{told}{_uses(settings, found, num_prompts)}"


def _uses(settings: RunSettings, found: Batch, num_prompts: Mapping[Split, int]) -> str:
    """How often training prompts come: in each epoch of their order once, unless by their weight."""
    available, asked = num_prompts.get("train"), settings.iterations * found.num_prompts
    if not available or not asked:
        return ""
    prompts = _many(available, "training prompt")
    if settings.rollout.priority_scale:
        return f"; {asked:,} draws of {prompts}, by their weight"
    if asked < available:
        return f"; {asked:,} of {prompts} {'is' if asked == 1 else 'are'} used"
    times, rest = divmod(asked, available)
    return f"; each of {prompts} comes {times:,}{f' or {times + 1:,}' if rest else ''} times"


def _evaluation(settings: RunSettings, num_prompts: Mapping[Split, int]) -> str:
    told, samples = [], settings.evaluation.samples_per_prompt
    made = "episode" if settings.plays else "text"
    for split, times in zip(("validation", "test"), evaluations(settings), strict=True):
        available = num_prompts.get(split, 0)  # type: ignore[call-overload]
        count = min(available, settings.evaluation.num_prompts or available)
        told.append(f"{times} × {_many(count * samples, made)} for {_many(count, split + ' prompt')}")
    return f"{' and '.join(told)}, {_drawn(settings.sampling(evaluating=True))}"


def _drawn(sampling: Sampling) -> str:
    """
    >>> _drawn(Sampling(max_tokens=1, temperature=0.0)), _drawn(Sampling(max_tokens=1, top_k=50))
    ('written greedily', 'drawn at temperature 1, top-k 50')
    >>> _drawn(Sampling(max_tokens=1, temperature=0.0, num_beams=5))
    'searched with 5 beams'
    """
    if sampling.num_beams > 1:
        return f"searched with {sampling.num_beams} beams"
    if sampling.temperature == 0:
        return "written greedily"
    cuts = f", top-k {sampling.top_k}" if sampling.top_k else ""
    return f"drawn at temperature {sampling.temperature:g}{cuts}" + (
        f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    )


def _checkpoints(settings: RunSettings) -> str:
    written, kept = checkpoints(settings), settings.keep_checkpoints
    if settings.keep_best is not None:  # each that is the best so far is written, too
        newest = "the newest" if kept == 1 else f"the newest {kept}"
        return f"at least {written} written, {newest} and the best kept; at the end model/ and best_model/"
    which = "all" if written <= kept else "the newest" if kept == 1 else f"the newest {kept}"
    return f"{written} written, {which} kept; at the end model/"


def _many(count: int, word: str) -> str:
    """
    >>> _many(1, "epoch"), _many(1024, "minibatch"), _many(2, "try")
    ('1 epoch', '1,024 minibatches', '2 tries')
    """
    plural = {"minibatch": "minibatches", "try": "tries"}.get(word, f"{word}s")
    return f"{count:,} {word if count == 1 else plural}"
