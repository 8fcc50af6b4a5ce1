"""Measures of held-out responses, against transformers' own loss, numbers by hand, and trl's DPO loss."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.algorithms.dpo import DPO
from learner.algorithms.kto import KTO
from learner.algorithms.supervised import Supervised
from learner.learner import Learner
from learner.progress import Progress
from tests.learner import seq2seq as encoder_decoders
from tests.learner.tiny import make_learner, perturb, plain_logprobs, rollout, snapshot

# Prompts and responses of uneven lengths, so that rows are padded.
TEXTS = [((3, 4), (5, 6, 2)), ((7,), (8, 9, 10, 11, 2)), ((9, 10, 11, 12), (2,))]
GIVEN = [rollout(number, *text) for number, text in enumerate(TEXTS)]
IGNORED = -100  # of transformers: tokens that are not in the loss


def test_loss_perplexity_and_accuracy_are_those_of_transformers(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], Supervised())
    width = max(len(prompt) + len(answer) for prompt, answer in TEXTS)
    rows = [[*prompt, *answer] for prompt, answer in TEXTS]
    tokens_BL = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    labels_BL = torch.tensor(
        [
            [IGNORED] * len(prompt) + list(answer) + [IGNORED] * (width - len(prompt) - len(answer))
            for prompt, answer in TEXTS
        ]
    )
    with torch.no_grad():
        out = learner.pair.lm(input_ids=tokens_BL, labels=labels_BL)
    asked_BL = labels_BL[:, 1:] != IGNORED
    chosen_BL = out.logits[:, :-1].argmax(-1) == labels_BL[:, 1:]
    expected = {
        "loss": float(out.loss),
        "perplexity": math.exp(float(out.loss)),
        "token_accuracy": float(chosen_BL[asked_BL].float().mean()),  # of 9 tokens: 3 + 5 + 1
    }
    assert int(asked_BL.sum()) == 9
    for budget in (1, 10, 1000):  # however the rows are split
        split = make_learner(models["llama"], Supervised(), token_budget=budget, logits_budget=50)
        assert split.measure(GIVEN) == pytest.approx(expected, rel=1e-5)


def test_an_encoder_decoder_is_measured_on_its_responses_alone(
    seq2seq: dict[encoder_decoders.Name, Path],
) -> None:
    learner = make_learner(seq2seq["t5"], Supervised())
    sums, hits, count = 0.0, 0, 0
    for prompt, answer in TEXTS:
        labels_1T = torch.tensor([answer])
        with torch.no_grad():
            out = learner.pair.lm(input_ids=torch.tensor([prompt]), labels=labels_1T)
        sums += float(out.loss) * len(answer)
        hits += int((out.logits.argmax(-1) == labels_1T).sum())
        count += len(answer)
    measures = learner.measure(GIVEN)
    assert measures["loss"] == pytest.approx(sums / count, rel=1e-5)
    assert measures["token_accuracy"] == pytest.approx(hits / count)


def test_measuring_changes_nothing_and_does_not_drop_out(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], Supervised(), dropout=True)
    before = snapshot(learner.pair)
    first = learner.measure(GIVEN)
    learner.pair.train()  # as an update leaves it
    assert learner.measure(GIVEN) == first
    assert all(torch.equal(before[name], now) for name, now in snapshot(learner.pair).items())


def pair(number: int, chosen: tuple[int, ...], rejected: tuple[int, ...]) -> list[Rollout]:
    """Two responses to one prompt, the better one first."""
    prompt = (3 + number, 4)
    both = [rollout(2 * number, prompt, chosen), rollout(2 * number + 1, prompt, rejected)]
    return [replace(one, group=number) for one in both]


def with_reference(learner: Learner, rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts with the learner's log-probabilities now, as of a reference."""
    logprobs = learner.logprobs(rollouts)
    return [
        replace(one, turns=(replace(one.turns[0], behavior_logprobs=tuple(values)),))
        for one, values in zip(rollouts, logprobs, strict=True)
    ]


PAIRS = [*pair(0, (5, 6, 2), (7, 2)), *pair(1, (8, 2), (9, 10, 11, 2)), *pair(2, (5, 5, 2), (6, 2))]


def test_log_probabilities_are_those_of_the_model_alone(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], DPO(), token_budget=10)
    for one, logprobs in zip(PAIRS, learner.logprobs(PAIRS), strict=True):
        with torch.no_grad():
            expected = plain_logprobs(learner.pair.lm, one)
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_held_out_pairs_have_the_loss_and_the_margins_of_plain_log_probabilities(
    models: dict[str, Path],
) -> None:
    learner = make_learner(models["llama"], DPO(beta=0.5), token_budget=12)
    held_out = with_reference(learner, PAIRS)
    start = learner.measure(held_out)
    # The policy is its reference: no margin, and a loss of log 2.
    assert start["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert start["rewards/margin"] == pytest.approx(0.0, abs=1e-5)

    with torch.no_grad():
        before = [float(plain_logprobs(learner.pair.lm, one).sum()) for one in PAIRS]
        perturb(learner.pair.lm, 0.1)
        after = [float(plain_logprobs(learner.pair.lm, one).sum()) for one in PAIRS]
    rewards = [0.5 * (now - then) for now, then in zip(after, before, strict=True)]
    margins = [rewards[at] - rewards[at + 1] for at in (0, 2, 4)]
    measures = learner.measure(held_out)
    assert measures["rewards/margin"] == pytest.approx(sum(margins) / 3, abs=1e-4)
    assert measures["rewards/accuracy"] == pytest.approx(sum(margin > 0 for margin in margins) / 3)
    losses = [math.log1p(math.exp(-margin)) for margin in margins]  # -log σ(margin)
    assert measures["loss"] == pytest.approx(sum(losses) / 3, abs=1e-4)


@pytest.mark.parametrize("algorithm", [Supervised(), DPO(), KTO()])
def test_measuring_tells_how_far_it_is(models: dict[str, Path], algorithm: Algorithm) -> None:
    learner = make_learner(models["llama"], algorithm, token_budget=1)  # a sequence, or a pair, at a time
    seen: list[tuple[str, int, int]] = []

    class Recorded(Progress):
        def __setattr__(self, name: str, value: Any) -> None:
            seen.append(value)
            super().__setattr__(name, value)

    learner._progress = Recorded()
    held_out = with_reference(learner, PAIRS)
    assert seen[1:] == [*(("logprobs", done, 6) for done in range(1, 7)), ("idle", 0, 1)]
    seen.clear()
    learner.measure(held_out)
    steps = range(2, 7, 2) if algorithm.traits.whole_groups else range(1, 7)
    assert seen[-len(steps) - 1 :] == [*(("measure", done, 6) for done in steps), ("idle", 0, 1)]
    if algorithm.traits.mismatched_kl:  # the two models' passes over mismatched responses come first
        assert seen[0] == ("measure", 1, 6) and len(seen) > len(steps) + 1


def test_held_out_labels_are_measured_without_pairs(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], KTO())
    rows = [replace(one, group=one.lease_id) for one in PAIRS]
    labelled = [
        replace(one, turns=(replace(one.turns[0], reward=float(one.lease_id % 2 == 0)),)) for one in rows
    ]
    measures = learner.measure(with_reference(learner, labelled))
    # r = 0 for all and z = 0: each loss is 1 - σ(0)
    assert measures["loss"] == pytest.approx(0.5, abs=1e-5)
    assert set(measures) == {"loss", "rewards/margin", "rewards/accuracy", "rewards/reference_point"}
