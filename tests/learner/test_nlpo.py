"""NLPO in the learner: the mask model's set on both sides of the ratio, its age, what survives a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.rollout import MaskRule, Rollout, Sampling
from learner.algorithms.base import OptimizerSettings
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.batches.batching import collate
from learner.functional.support import unpack_bits
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.drawing import Drawer, next_logits, states
from tests.learner.seq2seq import Name, single_turns
from tests.learner.tiny import (
    VOCAB,
    make_learner,
    perturb,
    random_rollouts,
    rollout,
    snapshot,
    whole,
    without_times,
)

ENDS = {"gpt2": 2, "llama": 2, "t5": 1, "bart": 1}
PROMPTS = [(3, 4), (5,), (6, 7, 8, 9), (10, 3, 11), (4, 4)]
WARPED = Sampling(max_tokens=6, min_tokens=3, temperature=0.7, top_k=9, top_p=0.95)
ONE_PASS = {"minibatch_size": None, "num_epochs": 1}
MASKED = {"top_p": 0.8, "min_tokens_to_keep": 2}


@pytest.fixture(scope="session")
def folders(models: dict[str, Path], seq2seq: dict[Name, Path]) -> dict[str, Path]:
    return {**models, **seq2seq}  # type: ignore[dict-item]


def aged(path: Path, algorithm: NLPO, **options: Any) -> Learner:
    """A learner whose policy has gone on since the mask was synced."""
    learner = make_learner(path, algorithm, **options)
    perturb(learner.pair.lm)
    return learner


def drawer(learner: Learner, end: int, sampling: Sampling) -> Drawer:
    """Draw as a worker with the learner's weights does."""
    if learner.mask is None:
        return Drawer(learner.pair.lm, sampling, end)
    assert isinstance(learner.algorithm, NLPO)
    return Drawer(learner.pair.lm, sampling, end, learner.mask.lm, learner.algorithm.mask_rule())


def flat(learner: Learner, rollouts: list[Rollout]) -> tuple[Tensor, Tensor, Tensor]:
    """(old log-probabilities, the reference's, bits as booleans) of every token."""
    batch = collate(rollouts)
    scored = learner._score_batch(batch, rollouts)
    assert scored.supports is not None
    mask_BT, every = batch.mask_BT, whole(batch)
    bits_BTW = torch.zeros(*mask_BT.shape, -(-VOCAB // 8), dtype=torch.uint8)
    every.place(bits_BTW, scored.supports.bits(every))
    allowed_NV = unpack_bits(bits_BTW[mask_BT], VOCAB)
    return scored.old_logprobs_BT[mask_BT], scored.ref_logprobs_BT[mask_BT], allowed_NV


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(
    ("algorithm", "sampling"),
    [
        (NLPO(top_p=0.8), Sampling(max_tokens=6)),
        (NLPO(top_p=0.8), WARPED),
        (NLPO(top_p=None, top_k=5), Sampling(max_tokens=6)),
        (NLPO(top_p=None, top_k=9, min_tokens_to_keep=12), WARPED),
        (PPO(), WARPED),
    ],
    ids=["top-p", "top-p warped", "top-k", "top-k warped", "warped alone"],
)
def test_the_learner_scores_what_was_drawn_from(
    folders: dict[str, Path], name: str, algorithm: PPO, sampling: Sampling
) -> None:
    learner = make_learner(folders[name], algorithm, sampling=sampling, token_budget=20)
    perturb(learner.pair.lm)
    drawn_by = drawer(learner, ENDS[name], sampling)
    rollouts = drawn_by.rollouts(PROMPTS)
    old_N, ref_N, allowed_NV = flat(learner, rollouts)
    drawn_N = torch.tensor([logprob for one in rollouts for logprob in one.turns[0].behavior_logprobs])
    torch.testing.assert_close(old_N, drawn_N, atol=2e-5, rtol=2e-5)
    sets = [
        drawn_by.support(one.turns[0].observation, before) for one in rollouts for before, _ in states(one)
    ]
    assert [row.nonzero().flatten().tolist() for row in allowed_NV] == [sorted(tokens) for tokens in sets]
    assert 1 < sum(map(len, sets)) / len(sets) < 0.7 * VOCAB  # the sets are cut, and leave a choice
    assert learner.reference is not None
    expected = torch.cat([drawn_by.logprobs(learner.reference.lm, one) for one in rollouts])
    torch.testing.assert_close(ref_N, expected.float(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_on_the_first_pass_the_ratio_is_one(folders: dict[str, Path], name: str) -> None:
    learner = aged(folders[name], NLPO(**MASKED, **ONE_PASS), sampling=WARPED, logits_budget=3 * VOCAB)
    metrics = learner.update(drawer(learner, ENDS[name], WARPED).rollouts(PROMPTS))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["clip_fraction"] == 0
    assert metrics["mismatch/max_ratio"] < 1 + 1e-4 and metrics["mask/forced_tokens"] == 0


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_what_the_mask_keeps_out_is_counted(folders: dict[str, Path], name: str) -> None:
    learner = aged(folders[name], NLPO(**MASKED, **ONE_PASS), sampling=WARPED)
    drawn_by = drawer(learner, ENDS[name], WARPED)
    rollouts = drawn_by.rollouts(PROMPTS)
    tokens, mass = [], []
    for one in rollouts:
        prompt = one.turns[0].observation
        for before, _ in states(one):
            possible = drawn_by.before_the_mask(before, VOCAB)
            out = sorted(set(possible) - set(drawn_by.masked(prompt, before)))
            p_V = next_logits(learner.pair.lm, prompt, before).softmax(-1)
            tokens.append(len(out) / VOCAB)
            mass.append(float(p_V[out].sum()))
    metrics = learner.update(rollouts)
    assert metrics["mask/share_of_tokens"] == pytest.approx(sum(tokens) / len(tokens), abs=1e-6)
    assert metrics["mask/share_of_probability"] == pytest.approx(sum(mass) / len(mass), abs=1e-5)
    assert 0.05 < metrics["mask/share_of_probability"] < metrics["mask/share_of_tokens"] < 1


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_the_mask_model_reads_a_batch_once(folders: dict[str, Path], name: str) -> None:
    learner = make_learner(folders[name], NLPO(minibatch_size=2, num_epochs=3), token_budget=40)
    assert learner.mask is not None and learner.reference is not None
    rows: dict[str, list[int]] = {"mask": [], "reference": []}
    for who, policy in (("mask", learner.mask), ("reference", learner.reference)):
        policy.lm.get_decoder().register_forward_hook(
            lambda _m, _i, out, who=who: rows[who].append(len(out.last_hidden_state))
        )
    learner.update(single_turns(7))
    assert rows["mask"] == rows["reference"] and len(rows["mask"]) > 1
    assert sum(rows["mask"]) == 7


def test_a_token_that_is_never_allowed_is_not_moved(models: dict[str, Path]) -> None:
    """Its row of the output head gets no gradient at all, and the others do."""
    plainly = OptimizerSettings(weight_decay=0.0)
    learner = aged(
        models["llama"], NLPO(top_p=None, top_k=4, entropy_coef=0.1, optimizer=plainly, num_epochs=2)
    )
    drawn_by = drawer(learner, 2, Sampling(max_tokens=6))
    rollouts = drawn_by.rollouts(PROMPTS[:2])
    prompts = [one.turns[0].observation for one in rollouts]
    seen = {
        token
        for prompt, one in zip(prompts, rollouts, strict=True)
        for before, _ in states(one)
        for token in drawn_by.support(prompt, before)
    }
    assert 4 <= len(seen) < VOCAB
    head = learner.pair.lm.get_output_embeddings().weight
    before_update = head.detach().clone()
    learner.update(rollouts)
    moved = (head != before_update).any(-1).nonzero().flatten().tolist()
    assert moved == sorted(seen)


def test_a_drawn_token_that_rounding_put_outside_is_let_in_and_counted(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], NLPO(top_p=None, top_k=1, **ONE_PASS))
    prompt = (3, 4)
    unlikely = int(next_logits(learner.pair.lm, prompt, []).argmin())
    metrics = learner.update([rollout(0, prompt, [unlikely], 1.0)])
    assert metrics["mask/forced_tokens"] == 1
    # of two tokens, the likeliest and the one drawn
    logits_V = next_logits(make_learner(models["gpt2"], PPO()).pair.lm, prompt, [])
    pair = torch.stack([logits_V.max(), logits_V.min()]).softmax(-1)
    assert metrics["entropy"] == pytest.approx(float(-(pair * pair.log()).sum()), abs=1e-5)


def test_a_mask_of_probability_one_is_ppo(models: dict[str, Path]) -> None:
    options: dict[str, Any] = {"minibatch_size": 4, "num_epochs": 2, "entropy_coef": 0.01}
    masked = make_learner(models["llama"], NLPO(top_p=1.0, **options))
    plain = make_learner(models["llama"], PPO(**options))
    expected = without_times(plain.update(random_rollouts(9)))
    metrics = without_times(masked.update(random_rollouts(9)))
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(snapshot(masked.pair), snapshot(plain.pair), atol=1e-6, rtol=1e-6)
    assert metrics["mask/share_of_tokens"] == metrics["mask/share_of_probability"] == 0


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    first, second = snapshot(one), snapshot(other)
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_mask_becomes_a_copy_of_the_policy_every_so_many_iterations(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], NLPO(target_update_iterations=2, **ONE_PASS))
    assert learner.mask is not None and learner.reference is not None
    assert same(learner.mask, learner.pair.policy)
    copied, ages = [], []
    for seed in range(5):
        held = snapshot(learner.mask)
        metrics = learner.update(random_rollouts(4, seed=seed))
        ages.append(metrics["mask/age"])
        copied.append(same(learner.mask, learner.pair.policy))
        kept = all(torch.equal(held[name], p) for name, p in snapshot(learner.mask).items())
        assert copied[-1] != kept
        manifest, arrays = learner.publish("float32")
        mask_arrays = learner.publish_mask("float32")
        assert mask_arrays is not None and mask_arrays.keys() == arrays.keys()
        assert (manifest.version, manifest.mask_version) == (seed + 1, (seed + 1) // 2 * 2)
        mask_weights = {name: torch.from_numpy(array) for name, array in mask_arrays.items()}
        assert all(torch.equal(mask_weights[name], p) for name, p in snapshot(learner.mask.lm).items())
    assert copied == [False, True, False, True, False]
    assert ages == [0, 1, 0, 1, 0]
    assert not any(parameter.requires_grad for parameter in learner.mask.parameters())


def test_without_a_mask_none_is_published(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO())
    assert learner.publish("float32")[0].mask_version is None
    assert learner.publish_mask("float32") is None


ADAPTING = NLPO(
    **MASKED,
    target_update_iterations=2,
    minibatch_size=4,
    num_epochs=2,
    kl=KLSettings(target=0.05),
    normalize_values=True,
)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("saved_after", [1, 2, 3])  # between two syncs, at one, after one
def test_a_loaded_learner_continues_to_the_last_bit(
    folders: dict[str, Path], tmp_path: Path, name: str, saved_after: int
) -> None:
    learner, resumed = (make_learner(folders[name], ADAPTING) for _ in range(2))
    assert learner.mask is not None and resumed.mask is not None
    for seed in range(saved_after):
        learner.update(single_turns(8, seed=seed))
    assert same(learner.mask, learner.pair.policy) == (saved_after == 2)
    learner.save(str(tmp_path))
    resumed.load(str(tmp_path))
    assert (resumed.version, resumed.mask_version) == (saved_after, learner.mask_version)
    assert same(resumed.mask, learner.mask) and same(resumed.pair, learner.pair)
    for seed in (7, 8):
        expected = without_times(learner.update(single_turns(8, seed=seed)))
        assert without_times(resumed.update(single_turns(8, seed=seed))) == expected
    assert same(resumed.mask, learner.mask) and same(resumed.pair, learner.pair)
    assert resumed.mask_version == learner.mask_version == (saved_after + 2) // 2 * 2
    norms = [resumed_or_not.pair.value_norm for resumed_or_not in (resumed, learner)]
    assert norms[0] is not None and norms[1] is not None
    assert norms[0].state_dict() == norms[1].state_dict()


# compatibility=rl4lms


def test_rl4lms_keeps_a_hundred_tokens_and_its_ratio_is_the_whole_softmaxs() -> None:
    algorithm = NLPO(compatibility="rl4lms")
    assert algorithm.mask_rule() == MaskRule(top_p=0.9, min_tokens_to_keep=100, keep_special=True)
    assert not algorithm.renormalizes()


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_rl4lms_gradient_is_ppos_whatever_the_mask(folders: dict[str, Path], name: str) -> None:
    """Its masked log-probabilities are the whole softmax's (defect N1): the mask cuts the sampler alone."""
    options: dict[str, Any] = {"minibatch_size": 4, "num_epochs": 2, "entropy_coef": 0.01}
    like_rl4lms = make_learner(
        folders[name],
        NLPO(compatibility="rl4lms", top_p=0.3, min_tokens_to_keep=1, **options),
        sampling=WARPED,
    )
    unwarped = make_learner(folders[name], PPO(**options))
    rollouts = drawer(like_rl4lms, ENDS[name], WARPED).rollouts(PROMPTS)
    expected = without_times(unwarped.update(rollouts))
    metrics = without_times(like_rl4lms.update(rollouts))
    assert {key: metrics[key] for key in expected} == expected
    assert same(like_rl4lms.pair, unwarped.pair)
    ours = make_learner(folders[name], NLPO(top_p=0.3, **options), sampling=WARPED)
    ours.update(rollouts)
    assert not same(ours.pair, unwarped.pair)


def test_rl4lms_never_renews_its_mask_and_counts_what_it_keeps_out(
    models: dict[str, Path],
) -> None:
    algorithm = NLPO(compatibility="rl4lms", target_update_iterations=1, **ONE_PASS)
    learner = make_learner(models["gpt2"], algorithm)
    assert learner.mask is not None
    initial = snapshot(learner.mask)
    ages = []
    for seed in range(3):
        metrics = learner.update(random_rollouts(4, seed=seed))
        ages.append(metrics["mask/age"])
        assert 0 <= metrics["mask/share_of_tokens"] < 1
        assert 0 <= metrics["mask/share_of_probability"] < 0.1 + 1e-6
        assert learner.publish("float32")[0].mask_version == 0
    assert ages == [0, 1, 2]
    torch.testing.assert_close(snapshot(learner.mask), initial, atol=0, rtol=0)
