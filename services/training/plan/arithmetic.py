"""Put the sizes of an iteration and of the whole run into words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from contracts.rollout import Sampling
from learner.algorithms.base import Algorithm
from learner.models.dropout import rates
from learner.settings import ModelSettings
from rollout_workers.settings import RolloutSettings
from services.config.data_settings import DataSettings
from services.config.evaluation_settings import NEVER, EvaluationSettings
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.training.loop.evaluations.held_out import SHOWN
from services.training.sources.mixed import mixture


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts that one iteration trains on, in words and numbers.

    Example: `Batch("64 prompts × 8 responses = 512 rollouts of at most 48 tokens", 512, 64, group_size=8)`
    """

    words: str
    num_rollouts: int
    num_prompts: int  # prompts that an iteration takes from the task
    group_size: int  # rollouts for each prompt
    is_exact: bool = True  # False: num_rollouts is a lower bound
    longest: int = 1  # most tokens of a rollout

    @property
    def bound(self) -> str:
        return "" if self.is_exact else "at least "


def arithmetic(
    settings: RunSettings, of_iteration: Batch, num_prompts: Mapping[Split, int]
) -> dict[str, str]:
    """Return the sentences `iteration`, `update`, `left out`, `run`, `evaluation` and `checkpoints`."""
    algorithm, iterations, evaluation = settings.algorithm, settings.iterations, settings.evaluation
    times = evaluations(iterations, settings.evaluate_every)
    made, most = "episode" if settings.plays else "text", None if settings.is_graded else SHOWN
    drawn = _drawn(settings.sampling(evaluating=True))
    measured = _measured(
        has_responses=settings.has_held_out_responses, prefers=settings.algorithm.traits.prefers
    )
    uses = ""
    if settings.curriculum is None and not settings.parts:  # these choose prompts themselves
        wanted, scale = iterations * of_iteration.num_prompts, settings.rollout.priority_scale
        uses = _uses(wanted, num_prompts.get("train"), scale)
    return {
        "iteration": of_iteration.words,
        "update": _update(algorithm, of_iteration, settings.learner.token_budget),
        **({"left out": "; ".join(left_out)} if (left_out := settings.passes_left_out) else {}),
        "run": _run(algorithm, iterations, of_iteration) + uses,
        "evaluation": f"{_evaluated(evaluation, times, num_prompts, made, most)}, {drawn}{measured}"
        if settings.evaluated_splits
        else "none: evaluate_every=never",
        "checkpoints": _checkpoints(
            checkpoints(iterations, settings.save_every), settings.keep_checkpoints, settings.keep_best
        ),
    }


def dropout(model: ModelSettings, algorithm: Algorithm, name: str, config: Mapping[str, Any]) -> str:
    """Say whether updates run with dropout, why, and at which rates of the model's config.json.

    Args:
        name: name of the algorithm.

    Example: "on, as supervised was published: attn_pdrop 0.1, embd_pdrop 0.1, resid_pdrop 0.1"
    """
    adapter = model.adapter
    reason = f"as {name} was published" if model.dropout is None else "as asked for"
    sentence = f"off, {reason}"
    if model.drops_out(algorithm):
        listed = ", ".join(f"{kind} {rate:g}" for kind, rate in sorted(rates(config).items()))
        sentence = f"on, {reason}: {listed}"
        if not listed:
            sentence = f"none, because config.json names no rate above 0 (otherwise on, {reason})"
    if adapter.trains and adapter.lora_dropout:
        sentence += f"; in the adapter {adapter.lora_dropout:g}"
    return sentence


def batch(
    algorithm: Algorithm,
    rollout: RolloutSettings,
    group_size: int,
    data: DataSettings | None,
    turns: int | None,
) -> Batch:
    """Return the rollouts that one iteration trains on.

    Args:
        group_size: rollouts for each prompt.
        turns: most turns of an episode; None: each prompt has one answer.
    """
    count, plays = rollout.prompts_per_iteration, turns is not None
    lengths, longest = _lengths(rollout.max_tokens, turns), rollout.max_tokens * (turns or 1)
    if data is not None:
        from services.training.sources.data_needs import num_responses

        of_data = _batch_of_data(data, count, group_size, num_responses(algorithm, data), lengths)
        return replace(of_data, longest=longest)
    if algorithm.traits.learns_from == "references":
        if plays:
            return Batch(f"{_many(count, 'episode')}{lengths}, played by an expert", count, count, group_size)
        words = f"{_many(count, 'prompt')} with a reference{lengths} each, more where one has several"
        return Batch(words, count, count, group_size, is_exact=False)
    words = f"{_product(count, group_size, plays)}{lengths}{_refilled(algorithm)}"
    return Batch(words, count * group_size, count, group_size, longest=longest)


def _refilled(algorithm: Algorithm) -> str:
    """Say how often prompts with equal rewards may be replaced."""
    if not algorithm.refills:
        return ""
    return f"; prompts of equal rewards are replaced, in up to {_many(algorithm.refills, 'further round')}"


def optimizer_steps(algorithm: Algorithm, of_iteration: Batch) -> tuple[int, int]:
    """Return the optimiser steps of an epoch and of an update, if nothing ends the update early."""
    num_rollouts, group = of_iteration.num_rollouts, of_iteration.group_size
    size = algorithm.least_minibatch(num_rollouts, of_iteration.longest)
    if algorithm.traits.whole_groups:
        an_epoch = math.ceil(num_rollouts // group / max(1, size // group))
    else:
        an_epoch = math.ceil(num_rollouts / size)
    return an_epoch, an_epoch * algorithm.num_epochs


def evaluations(iterations: int, every: int | Literal["never"]) -> tuple[int, int]:
    """Return how often validation and test prompts are answered.

    Both are answered before the first iteration and after the last; validation also every `every` iterations.
    """
    if every == NEVER:
        return 0, 0
    between = (iterations - 1) // every if every else 0
    return 2 + between, 2


def checkpoints(iterations: int, every: int) -> int:
    """Return the number of checkpoints: one every `every` iterations, and one after the last."""
    return 1 + ((iterations - 1) // every if every else 0)


def _batch_of_data(data: DataSettings, count: int, group_size: int, responses: int, lengths: str) -> Batch:
    """Return a batch of annotated examples, mixed with new rollouts if `data.share` is set."""
    if data.share is None:
        if responses == 1:
            return Batch(f"{_many(count, 'response')} of the data set", count, 0, data.num_responses)
        words = (
            f"{count} prompts of the data set × {responses} responses = {_many(count * responses, 'rollout')}"
        )
        return Batch(words, count * responses, 0, data.num_responses)
    mixed = mixture(data.share, count, group_size, responses)
    written, from_data = mixed.num_prompts * group_size, mixed.num_examples * responses
    words = f"{_product(mixed.num_prompts, group_size)}{lengths}, and {from_data:,} of the data set"
    return Batch(words, written + from_data, mixed.num_prompts, data.num_responses)


def _product(num_prompts: int, group_size: int, plays: bool = False) -> str:
    made, word = ("episode", "try") if plays else ("rollout", "response")
    total = _many(num_prompts * group_size, made)
    return f"{_many(num_prompts, 'prompt')} × {_many(group_size, word)} = {total}"


def _lengths(max_tokens: int, max_turns: int | None) -> str:
    """
    >>> _lengths(48, None), _lengths(8, 3)
    (' of at most 48 tokens', ' of at most 3 turns of 8 tokens')
    """
    turns = "" if max_turns is None else f"{_many(max_turns, 'turn')} of "
    return f" of at most {turns}{max_tokens:,} tokens"


def _update(algorithm: Algorithm, of_iteration: Batch, token_budget: int) -> str:
    num = of_iteration.num_rollouts
    chosen = "what it selects of " if algorithm.selects else ""
    an_epoch, steps = optimizer_steps(algorithm, of_iteration)
    budget = f"micro-batches of at most {token_budget:,} tokens"
    if algorithm.traits.update == "trust_region":
        return f"one step within the trust region, and {_many(steps, 'step')} of the critic, in {budget}"
    counted = algorithm.minibatch_counts
    size = f"{min(algorithm.minibatch_size or num, num):,}" if counted is None else f"{counted:,} tokens"
    steps_in_words = f"{_bound(algorithm, of_iteration)}{_many(steps, 'optimiser step')}"
    return (
        f"{chosen}{_many(num, 'rollout')} in minibatches of {size} = {_many(an_epoch, 'minibatch')} × "
        f"{_many(algorithm.num_epochs, 'epoch')} = {steps_in_words}, in {budget}"
    )


def _bound(algorithm: Algorithm, of_iteration: Batch) -> str:
    """Say whether the number of optimiser steps is a bound."""
    fewer = algorithm.target_kl is not None or algorithm.selects or algorithm.minibatch_counts is not None
    return "at most " if fewer else of_iteration.bound


def _run(algorithm: Algorithm, iterations: int, of_iteration: Batch) -> str:
    steps = iterations * optimizer_steps(algorithm, of_iteration)[1]
    steps_in_words = f" and {_bound(algorithm, of_iteration)}{_many(steps, 'optimiser step')}"
    if algorithm.traits.update == "trust_region":
        steps_in_words = f", {_many(iterations, 'step')} within the trust region and {steps:,} of the critic"
    rollouts = f"{of_iteration.bound}{_many(iterations * of_iteration.num_rollouts, 'rollout')}"
    return f"{_many(iterations, 'iteration')} = {rollouts}{steps_in_words}"


def _uses(wanted: int, available: int | None, priority_scale: float) -> str:
    """Say how often each training prompt is used, or that prompts are drawn by weight."""
    if not available or not wanted:
        return ""
    prompts = _many(available, "training prompt")
    if priority_scale:
        return f"; {wanted:,} draws of {prompts}, by their weight"
    if wanted < available:
        return f"; {wanted:,} of {prompts} {'is' if wanted == 1 else 'are'} used"
    times, rest = divmod(wanted, available)
    if times == 1 and not rest:
        return f"; each of {prompts} comes once"
    return f"; each of {prompts} comes {times:,}{f' or {times + 1:,}' if rest else ''} times"


def _evaluated(
    evaluation: EvaluationSettings,
    times: tuple[int, int],
    num_prompts: Mapping[Split, int],
    made: str,
    most: int | None,
) -> str:
    """Say how many texts are written.

    Args:
        most: limit on the prompts of a split if nothing grades the texts.
    """
    amounts = []
    splits = ("validation", num_prompts.get("validation", 0)), ("test", num_prompts.get("test", 0))
    for (split, available), often in zip(splits, times, strict=True):
        count = min(available, evaluation.num_prompts or available, most or available)
        texts = _many(count * evaluation.samples_per_prompt, made)
        amounts.append(f"{often} × {texts} for {_many(count, split + ' prompt')}")
    return " and ".join(amounts)


def _measured(*, has_responses: bool, prefers: bool) -> str:
    """Name the metrics of held-out responses that an evaluation adds."""
    if not has_responses:
        return ""
    if prefers:
        return "; loss, and which response is preferred, of held-out responses"
    return "; loss, perplexity and token accuracy of held-out responses"


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


def _checkpoints(written: int, keep: int, keep_best: str | None) -> str:
    """
    >>> _checkpoints(10, 2, None), _checkpoints(1, 2, None)
    ('10 written, the newest 2 kept; at the end model/', '1 written, all kept; at the end model/')
    """
    newest = "the newest" if keep == 1 else f"the newest {keep}"
    if keep_best is not None:  # each new best checkpoint is also written
        return f"at least {written} written, {newest} and the best kept; at the end model/ and best_model/"
    return f"{written} written, {'all' if written <= keep else newest} kept; at the end model/"


def _many(count: int, word: str) -> str:
    """
    >>> _many(1, "epoch"), _many(1024, "minibatch"), _many(2, "try")
    ('1 epoch', '1,024 minibatches', '2 tries')
    """
    plural = {"minibatch": "minibatches", "try": "tries"}.get(word, f"{word}s")
    return f"{count:,} {word if count == 1 else plural}"
