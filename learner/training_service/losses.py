"""Losses of a training service: sums over tokens, by the formulas of Tinker's documentation.

    cross_entropy         -Σ w log π                              w: weights
    importance_sampling   -Σ ρ A                                  ρ = π / μ, μ: the policy that sampled
    ppo                   -Σ min(ρA, clip(ρ, low, high) A)        Schulman et al. 2017 (arXiv 1707.06347)
    cispo                 -Σ sg[clip(ρ, low, high)] A log π       MiniMax 2025 (arXiv 2506.13585)
    dro                   -Σ (A log π - β/2 · (log ρ)²)           Richemond et al. 2024 (arXiv 2405.19107)

The losses are sums, not means, so N calls add up to one call with all data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from contracts.errors import InputError
from learner.training_service.data import TARGETS, Datum

if TYPE_CHECKING:
    from torch import Tensor

Inputs: TypeAlias = "Mapping[str, Tensor]"
Config = Mapping[str, float]


def cross_entropy(logprobs_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -logprobs_M * inputs["weights"] if "weights" in inputs else -logprobs_M


def importance_sampling(logprobs_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -_ratio(logprobs_M, inputs) * inputs["advantages"]


def ppo(logprobs_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    ratio_M, advantages_M = _ratio(logprobs_M, inputs), inputs["advantages"]
    return -(ratio_M * advantages_M).minimum(_clipped(ratio_M, inputs, config) * advantages_M)


def cispo(logprobs_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    weight_M = _clipped(_ratio(logprobs_M, inputs).detach(), inputs, config)
    return -weight_M * inputs["advantages"] * logprobs_M


def dro(logprobs_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    square_M = (logprobs_M - inputs["logprobs"]).square()
    return -(logprobs_M * inputs["advantages"] - config["beta"] / 2 * square_M)


def _ratio(logprobs_M: Tensor, inputs: Inputs) -> Tensor:
    return (logprobs_M - inputs["logprobs"]).exp()


def _clipped(ratio_M: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Clip ratios between two bounds, which a datum may set for each token."""
    low, high = (inputs.get(name, ratio_M.new_tensor(config[name])) for name in BOUNDS)
    return ratio_M.maximum(low).minimum(high)


MOST_TARGETS = 2**18  # limit of a datum's targets, because each takes a row of the last hidden states
BOUNDS = ("clip_low_threshold", "clip_high_threshold")
CLIP = {BOUNDS[0]: 0.8, BOUNDS[1]: 1.2}
SAMPLED = ("logprobs", "advantages")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, the inputs that it needs or accepts beside the targets, and its options' defaults."""

    of_tokens: Callable[[Tensor, Inputs, Config], Tensor]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    options: Mapping[str, float] = field(default_factory=dict)


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(cross_entropy, takes=("weights",)),
    "importance_sampling": Loss(importance_sampling, SAMPLED),
    "ppo": Loss(ppo, SAMPLED, BOUNDS, CLIP),
    "cispo": Loss(cispo, SAMPLED, BOUNDS, CLIP),
    "dro": Loss(dro, SAMPLED, options={"beta": 0.05}),
}
UNPUBLISHED = ("gspo", "stable_reinforce")  # names in the SDK's list of losses that its documentation lacks


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a model: tokens are below `vocab_size`, texts `window` long at most; None: any length.

    Example: `Limits(vocab_size=49152, window=8192)`
    """

    vocab_size: int
    window: int | None


def check(name: str, config: Mapping[str, object], data: Sequence[Datum], limits: Limits) -> Config:
    """Return the loss's options with defaults, if loss, options and data fit each other.

    Raises:
        InputError: loss, options or data don't fit; the message has the actual and the expected value.
    """
    if name not in LOSSES:
        reason = "its formula is not published" if name in UNPUBLISHED else "there is no such loss here"
        raise InputError(
            f"loss_fn={name!r}: {reason}; expected one of {', '.join(LOSSES)}, or "
            "forward_backward_custom with a formula of your own"
        )
    loss = LOSSES[name]
    for option, value in config.items():
        if option not in loss.options:
            raise InputError(
                f"loss_fn_config: {name} has no option {option!r}; expected {_listed(loss.options)}"
            )
        if not isinstance(value, (int, float)):
            raise InputError(f"loss_fn_config: {option}={value!r}; expected a number")
    if not data:
        raise InputError("no data; expected one datum or more")
    for place, datum in enumerate(data):
        _check_datum(f"datum {place}", name, loss, datum)
        _check_tokens(f"datum {place}", datum, limits)
        if datum.inputs.keys() != data[0].inputs.keys():
            raise InputError(
                f"datum {place}: loss_fn_inputs are {_listed(sorted(datum.inputs))}; expected those of datum "
                f"0, {_listed(sorted(data[0].inputs))}"
            )
    return {**loss.options, **{option: float(str(value)) for option, value in config.items()}}


def _check_datum(where: str, name: str, loss: Loss, datum: Datum) -> None:
    missing = [key for key in (TARGETS, *loss.needs) if key not in datum.inputs]
    if missing:
        raise InputError(f"{where}: loss_fn_inputs lack {_listed(missing)}, which {name} needs")
    for key, values in datum.inputs.items():
        if key not in (TARGETS, *loss.needs, *loss.takes):
            raise InputError(
                f"{where}: loss_fn_inputs[{key!r}] is not for {name}; expected "
                f"{_listed((TARGETS, *loss.needs, *loss.takes))}"
            )
        if values.shape != datum.targets.shape:
            raise InputError(
                f"{where}: loss_fn_inputs[{key!r}] has shape {values.shape}; expected that of the targets, "
                f"{datum.targets.shape}"
            )
        if not np.isfinite(values).all():
            raise InputError(f"{where}: loss_fn_inputs[{key!r}] is not finite")
    shape, count = datum.targets.shape, len(datum.tokens)
    if len(shape) not in (1, 2) or shape[0] != count or not datum.targets.size:
        raise InputError(
            f"{where}: {count} tokens and targets of shape {shape}; expected a target, or a row of targets, "
            "for each token, and at least one token"
        )
    if datum.targets.size > MOST_TARGETS:
        raise InputError(
            f"{where}: {count} tokens with {shape[1:] or 1} targets at each; expected {MOST_TARGETS} targets "
            "of a datum at most: cut the text, or give fewer targets at each place"
        )
    if datum.targets.dtype.kind != "i":
        raise InputError(f"{where}: {TARGETS} are {datum.targets.dtype}; expected integers")


def _check_tokens(where: str, datum: Datum, limits: Limits) -> None:
    if limits.window is not None and len(datum.tokens) > limits.window:
        raise InputError(
            f"{where}: {len(datum.tokens)} tokens; the model reads {limits.window} at most: cut the text"
        )
    for key, tokens in (("model_input", datum.tokens), (TARGETS, datum.targets)):
        if tokens.min() < 0 or tokens.max() >= limits.vocab_size:
            raise InputError(
                f"{where}: {key} has tokens from {tokens.min()} to {tokens.max()}; the model has 0 to "
                f"{limits.vocab_size - 1}"
            )


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) or "none"  # type: ignore[call-overload]
