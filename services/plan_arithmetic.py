"""The arithmetic of a run in words: what an iteration is made of, and what all of them come to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from learner.algorithms.base import Selects, learns_from
from learner.algorithms.trpo import TRPO
from services.mixed_source import mixture
from services.settings import RunSettings
from services.tasks.base import Split


@dataclass(frozen=True, slots=True)
class Batch:
    """What one iteration trains on: how it comes about, and how many rollouts that are.

    Example: `Batch("64 prompts × 8 responses = 512 rollouts", 512)`
    """

    words: str
    num_rollouts: int
    is_exact: bool = True


def arithmetic(settings: RunSettings, num_prompts: Mapping[Split, int]) -> dict[str, str]:
    """A sentence for each: `iteration`, `update`, `run`, `evaluation`, `checkpoints`."""
    found = batch(settings)
    return {
        "iteration": f"{found.words}{_lengths(settings)}",
        "update": _update(settings, found),
        "run": _run(settings, found, num_prompts),
        "evaluation": _evaluation(settings, num_prompts),
        "checkpoints": _checkpoints(settings),
    }


def batch(settings: RunSettings) -> Batch:
    """What one iteration begins with."""
    count, each = settings.rollout.prompts_per_iteration, settings.group_size
    if settings.data is not None:
        return _batch_of_data(settings, count, each)
    if learns_from(settings.algorithm) == "references":
        if settings.plays:
            return Batch(f"{_many(count, 'episode')} that an expert plays", count)
        words = f"{_many(count, 'prompt')} = {_many(count, 'rollout')}, more where one has several references"
        return Batch(words, count, is_exact=False)
    return Batch(_product(settings, count, each), count * each)


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
            return Batch(f"{_many(count, 'response')} of the data set", count)
        words = (
            f"{count} prompts of the data set × {responses} responses = {_many(count * responses, 'rollout')}"
        )
        return Batch(words, count * responses)
    mixed = mixture(data.share, count, each, responses)
    own, from_data = mixed.num_prompts * each, mixed.num_examples * responses
    words = f"{_product(settings, mixed.num_prompts, each)}, and {from_data:,} of the data set"
    return Batch(words, own + from_data)


def _product(settings: RunSettings, num_prompts: int, each: int) -> str:
    made = "episode" if settings.plays else "rollout"
    word = "response" if not settings.plays else "try"
    plural = "responses" if not settings.plays else "tries"
    return (
        f"{_many(num_prompts, 'prompt')} × {each} {word if each == 1 else plural} = "
        f"{_many(num_prompts * each, made)}"
    )


def _lengths(settings: RunSettings) -> str:
    if settings.data is not None and settings.data.share is None:
        return ""
    tokens = settings.rollout.max_tokens
    if settings.plays:
        turns = settings.environment.max_turns
        return f" of at most {_many(turns, 'turn')} of {tokens:,} tokens"
    return f" of at most {tokens:,} tokens"


def _update(settings: RunSettings, found: Batch) -> str:
    algorithm, num = settings.algorithm, found.num_rollouts
    selects = isinstance(algorithm, Selects) and getattr(algorithm, "drop_constant_groups", True)
    chosen = "what it selects of " if selects else ""
    a_epoch, steps = optimizer_steps(settings, num)
    budget = f"micro-batches of at most {settings.learner.token_budget:,} tokens"
    if isinstance(algorithm, TRPO):
        return f"one step within the trust region, and {_many(steps, 'step')} of the critic, in {budget}"
    size = min(algorithm.minibatch_size or num, num)
    at_most = "at most " if chosen or algorithm.target_kl is not None else ""
    at_most = at_most or ("" if found.is_exact else "at least ")
    return (
        f"{chosen}{_many(num, 'rollout')} in minibatches of {size:,} = {_many(a_epoch, 'minibatch')} "
        f"× {_many(algorithm.num_epochs, 'epoch')} = {at_most}{_many(steps, 'optimiser step')}, in {budget}"
    )


def _run(settings: RunSettings, found: Batch, num_prompts: Mapping[Split, int]) -> str:
    count = settings.iterations
    steps = 1 if isinstance(settings.algorithm, TRPO) else optimizer_steps(settings, found.num_rollouts)[1]
    told = (
        f"{_many(count, 'iteration')} = {_many(count * found.num_rollouts, 'rollout')} and "
        f"{_many(count * steps, 'optimiser step')}"
    )
    available = num_prompts.get("train")
    if available:
        asked = count * settings.rollout.prompts_per_iteration
        told += f"; each of {_many(available, 'training prompt')} comes {asked / available:.3g} times"
    return told


def _evaluation(settings: RunSettings, num_prompts: Mapping[Split, int]) -> str:
    told, samples = [], settings.evaluation.samples_per_prompt
    for split, times in zip(("validation", "test"), evaluations(settings), strict=True):
        available = num_prompts.get(split, 0)  # type: ignore[call-overload]
        count = min(available, settings.evaluation.num_prompts or available)
        told.append(f"{times} × {_many(count * samples, 'text')} for {_many(count, split + ' prompt')}")
    greedy = settings.sampling(evaluating=True).temperature == 0
    return f"{' and '.join(told)}{', drawn greedily' if greedy else ''}"


def _checkpoints(settings: RunSettings) -> str:
    written, kept = checkpoints(settings), settings.keep_checkpoints
    if settings.keep_best is not None:  # each that is the best so far is written, too
        return f"at least {written} written, the newest {kept} and the best kept; then both models alone"
    return f"{written} written, the newest {min(written, kept)} kept; then the model alone"


def _many(count: int, word: str) -> str:
    """
    >>> _many(1, "epoch"), _many(1024, "minibatch"), _many(2, "try")
    ('1 epoch', '1,024 minibatches', '2 tries')
    """
    plural = {"minibatch": "minibatches", "try": "tries"}.get(word, f"{word}s")
    return f"{count:,} {word if count == 1 else plural}"
