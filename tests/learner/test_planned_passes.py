"""Passes that need not wait for a GPU: micro-batches are planned on the host, and equal what masks give."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.rollout import Rollout, Sampling
from learner.algorithms.a2c import A2C
from learner.algorithms.base import Algorithm
from learner.algorithms.dpo import DPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.batches.batching import MicroBatch, collate
from learner.batches.fetching import fetched
from learner.batches.micro_batch import upload
from learner.models.shared_prompts import MOST_LEFT, shared_prompts
from learner.models.split_turns import split_turns
from tests.learner.seq2seq import Name, single_turns
from tests.learner.test_shared_prompts import groups
from tests.learner.tiny import games, make_learner, random_rollouts, whole

# Operators after which a GPU's result decides what the processor does next, so that it waits.
WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "bincount", "repeat_interleave.Tensor")
# Functions that may wait, and why.
ONCE_A_BATCH = "once a batch, outside of its passes"
ALLOWED = {
    "clip_gradients.<locals>.clip": "a minibatch's gradient norm decides whether a step may be made",
    "require_finite": ONCE_A_BATCH,
    "_indexed": ONCE_A_BATCH,
    "credit_inputs": ONCE_A_BATCH,
    "explained_variance": ONCE_A_BATCH,
    "measured_kl": ONCE_A_BATCH,
    "ActorCriticAlgorithm._mean_return": ONCE_A_BATCH,
    "RunningNorm.deviation": ONCE_A_BATCH,
    "pack": "how many words a support has depends on the logits",
    "keep": "as pack",
    "KeptSupports.bits": "as pack",
    "Stacks.forward": "transformers looks whether a prompt is padded, once a pass of an encoder-decoder",
}
OUTERMOST = "Learner._train"  # it may wait itself, once a batch, and not in what it calls


class AsIfOnAGPU(TorchDispatchMode):
    """Refuse the operators for which the processor would wait; `num_operators` counts all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operators = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.num_operators += 1
        name = str(function)
        masks = name.startswith("aten.index") and any(map(is_mask, args[1:2]))
        if masks or any(wait in name for wait in WAITS):
            callers = calling()
            allowed = callers[:1] == [OUTERMOST] or any(caller in ALLOWED for caller in callers)
            assert allowed, f"{name} in {callers}"
        return function(*args, **(kwargs or {}))


def is_mask(indices: Any) -> bool:
    """Return whether one of an operator's indices is boolean."""
    return isinstance(indices, (list, tuple)) and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices
    )


def calling() -> list[str]:
    """Return the learner's functions on the stack, the innermost first."""
    names, frame = list[str](), sys._getframe(1)
    while frame is not None:
        if "/learner/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return names


def groups_of_two() -> list[Rollout]:
    return [replace(one, group=number // 2) for number, one in enumerate(random_rollouts(8))]


CUT = Sampling(max_tokens=32, top_p=0.9, repetition_penalty=1.2)
UPDATES: dict[str, tuple[Algorithm, list[Rollout], dict[str, Any]]] = {
    "ppo": (PPO(minibatch_size=5, num_epochs=2), games(9), {"behavior": "importance"}),
    "ppo, values": (PPO(minibatch_size=5, num_epochs=1, normalize_values=True), games(9), {}),
    "grpo": (GRPO(minibatch_size=6, num_epochs=2), groups(3, 4, 20), {"token_budget": 150}),
    "gspo": (GSPO(), groups(3, 4, 20), {"token_budget": 150}),
    "a2c": (A2C(), games(9), {}),
    "dpo": (DPO(minibatch_size=4), groups_of_two(), {}),
    "nlpo": (NLPO(minibatch_size=5, num_epochs=1), games(9), {"sampling": CUT}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_no_pass_of_an_update_waits_for_a_number(models: dict[str, Path], name: str) -> None:
    algorithm, rollouts, options = UPDATES[name]
    learner = make_learner(models["llama"], algorithm, **{"token_budget": 60, **options})
    with AsIfOnAGPU() as mode:
        learner.update(rollouts)
    assert mode.num_operators > 1000


def test_no_pass_of_an_encoder_decoder_waits_for_a_number(seq2seq: dict[Name, Path]) -> None:
    learner = make_learner(seq2seq["t5"], PPO(minibatch_size=5, num_epochs=1), token_budget=60)
    with AsIfOnAGPU() as mode:
        learner.update(single_turns(9))
    assert mode.num_operators > 1000


@pytest.mark.parametrize(
    "waits",
    [
        lambda values: values.sum().item(),
        lambda values: float(values[0]),
        lambda values: values[values > 0],
        lambda values: (values > 0).nonzero(),
        lambda values: values.unique(),
        lambda values: bool(values.any()),
    ],
)
def test_what_waits_is_refused(waits: Any) -> None:
    with pytest.raises(AssertionError, match="aten"), AsIfOnAGPU():
        waits(torch.ones(3))


# Plans, against what masks of tensors give


@given(st.integers(1, 12), st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_plan_has_the_tokens_in_the_order_of_the_mask(num: int, seed: int, order: Any) -> None:
    batch = collate(games(num, seed))
    sequences = list(range(batch.num_sequences))
    order.shuffle(sequences)
    sequences = sequences[: order.randint(1, len(sequences))]
    micro = batch.part(sequences)
    place: dict[int, int] = {}
    for sequence in sequences:
        place.setdefault(int(batch.rows_S[sequence]), len(place))
    chosen = torch.tensor(sorted(sequences, key=lambda sequence: place[int(batch.rows_S[sequence])]))
    mask_SL = batch.loss_mask_SL[chosen, : int(batch.lengths_S[chosen].max())]
    rows_N = batch.rows_S[chosen, None].expand_as(mask_SL)[mask_SL]
    expected = {
        "tokens_SL": batch.tokens_SL[chosen, : mask_SL.shape[1]],
        "loss_mask_SL": mask_SL,
        "rows_N": rows_N,
        "columns_N": (batch.columns_S[chosen, None] + mask_SL.cumsum(-1) - 1)[mask_SL],
        "targets_N": batch.tokens_SL[chosen, : mask_SL.shape[1]][mask_SL],
        "responses_N": rows_N.unique_consecutive(return_inverse=True)[1],
        "lengths_N": batch.mask_BT.sum(-1)[rows_N],
        "rows_R": rows_N.unique_consecutive(),
    }
    for name, tensor in expected.items():
        planned = getattr(micro, name)
        assert planned.dtype == tensor.dtype and torch.equal(planned, tensor), name
    states_SLH = torch.randn(*mask_SL.shape, 3)
    assert torch.equal(micro.predicting(states_SLH), states_SLH[:, :-1][mask_SL[:, 1:]])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 30), st.integers(0, 99))
def test_shared_prompts_are_those_that_tensors_give(num: int, size: int, prompt: int, seed: int) -> None:
    micro = whole(collate(groups(num, size, prompt + num, seed=seed)))
    expected, planned = by_tensors(micro), shared_prompts(micro)
    assert (expected is None) == (planned is None)
    if expected is not None and planned is not None:
        *parts, predicts_SR = expected
        names = ("prompts_UP", "prompt_S", "lengths_S", "own_SR", "positions_SR")
        for name, tensor in zip(names, parts, strict=True):
            assert torch.equal(getattr(planned, name), tensor), name
        states_SRH = torch.randn(*predicts_SR.shape, 3)
        assert torch.equal(states_SRH.flatten(0, 1)[planned.places_N], states_SRH[predicts_SR])


def by_tensors(micro: MicroBatch) -> tuple[Tensor, ...] | None:
    """Cut the sequences before their prompts' last tokens, by operators that would wait for a GPU."""
    tokens_SL, mask_SL = micro.tokens_SL, micro.loss_mask_SL
    columns_L = torch.arange(tokens_SL.shape[1])
    lengths_S = mask_SL.int().argmax(-1) - 1
    if not (width := int(lengths_S.max())):
        return None
    prompts_SP = tokens_SL[:, :width].masked_fill(columns_L[:width] >= lengths_S[:, None], -1)
    prompts_UP, prompt_S = torch.unique(prompts_SP, dim=0, return_inverse=True)
    last_S = (columns_L * mask_SL).amax(-1)
    own_width = int((last_S - lengths_S).max())
    if len(prompts_UP) == len(tokens_SL) or prompts_UP.numel() < 2:
        return None
    if prompts_UP.numel() + len(tokens_SL) * own_width > MOST_LEFT * tokens_SL.numel():
        return None
    columns_SR = lengths_S[:, None] + columns_L[:own_width]
    index_SR = columns_SR.clamp(max=tokens_SL.shape[1] - 2)
    predicts_SR = mask_SL.gather(1, index_SR + 1) & (columns_SR < last_S[:, None])
    return prompts_UP.clamp(min=0), prompt_S, lengths_S, tokens_SL.gather(1, index_SR), index_SR, predicts_SR


@given(st.integers(1, 12), st.integers(0, 99))
def test_turns_are_cut_as_their_lengths_say(num: int, seed: int) -> None:
    rollouts = single_turns(num, seed)
    cut = split_turns(whole(collate(rollouts)))
    flat, width = cut.response_BT.flatten(), cut.response_BT.shape[1]
    for row, one in enumerate(rollouts):
        turn = one.turns[0]
        assert cut.source_BS[row, : turn.num_observed].tolist() == list(turn.observation)
        assert (
            cut.seen_BS[row].sum() == turn.num_observed and not cut.source_BS[row, turn.num_observed :].any()
        )
        here = cut.places_N[(cut.places_N // width) == row]
        assert flat[here].tolist() == list(turn.tokens)


def test_a_plan_is_made_once_and_each_pass_has_its_own_tokens() -> None:
    batch = collate(games(5))
    one, other = batch.part([0, 2]), batch.part([0, 2])
    assert one.rows_N is other.rows_N and one.on_host is other.on_host
    assert one.tokens_SL is not other.tokens_SL and one.tokens_SL.data_ptr() == other.tokens_SL.data_ptr()
    changed = replace(batch, tokens_SL=batch.tokens_SL + 1)
    assert torch.equal(changed.part([0, 2]).targets_N, one.targets_N + 1)


def test_an_upload_keeps_types_and_shapes() -> None:
    arrays = {
        "mask_SL": np.array([[True, False, True]]),
        "none_N": np.zeros(0, np.int64),
        "tokens_SL": np.arange(6).reshape(2, 3),
        "weights_N": np.array([0.5, 2.0], np.float32),
    }
    uploaded = upload(arrays, torch.device("cpu"))
    assert {name: tensor.numpy().dtype for name, tensor in uploaded.items()} == {
        name: array.dtype for name, array in arrays.items()
    }
    assert all(np.array_equal(uploaded[name].numpy(), array) for name, array in arrays.items())


def test_scalars_are_fetched_by_name() -> None:
    scalars = {"half": torch.tensor(0.5), "three": torch.tensor([3]), "tenth": torch.tensor(0.1)}
    assert fetched(scalars) == {"half": 0.5, "three": 3.0, "tenth": float(torch.tensor(0.1))}
    assert fetched({}) == {}
