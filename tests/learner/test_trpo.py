"""TRPO's update: a step within the trust region or none at all, and a critic that leaves the policy alone."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import InputError, LearnerError
from contracts.rollout import Rollout, Sampling
from learner.algorithms.base import Credit
from learner.algorithms.trpo import TRPO
from learner.updates.context import UpdateContext
from learner.updates.trust_region import TrustRegionUpdate
from tests.learner import seq2seq as encoder_decoders
from tests.learner import tiny
from tests.learner.contexts import UNCUT, make_context, random_credit
from tests.learner.test_bandit import play, probability
from tests.learner.tiny import CONFIGS, make_learner, make_pair, random_rollouts, snapshot

EVERYTHING = Sampling(max_tokens=20, temperature=0.7, top_k=9, min_tokens=3)
QUICK = TRPO(num_epochs=2, minibatch_size=4, cg_max_steps=8)


@pytest.fixture(scope="session")
def every_model(models: dict[str, Path], seq2seq: dict[encoder_decoders.Name, Path]) -> dict[str, Path]:
    return {**models, **seq2seq}


def case(name: str, num: int = 8) -> tuple[list[Rollout], Any]:
    """Rollouts for the model's family, and its plain logits."""
    if name in CONFIGS:
        return random_rollouts(num), tiny.plain_logits
    return encoder_decoders.single_turns(num), encoder_decoders.plain_logits


def update(context: UpdateContext, credit: Credit | None = None) -> dict[str, float]:
    context.models.pair.train()
    return TrustRegionUpdate(context).run(random_credit(context) if credit is None else credit)


def moved(before: dict[str, Tensor], module: torch.nn.Module) -> list[str]:
    """Names of the parameters that are not what they were, to the last bit."""
    return [name for name, p in module.named_parameters() if not torch.equal(before[name], p)]


def chosen(rollouts: Sequence[Rollout]) -> Tensor:
    return torch.tensor([token for one in rollouts for turn in one.turns for token in turn.tokens])


@pytest.mark.parametrize("sampling", [UNCUT, EVERYTHING], ids=["uncut", "cut"])
@pytest.mark.parametrize("name", ["gpt2", "llama_tied", "gemma2", "t5", "bart"])
def test_the_step_improves_the_objective_within_the_trust_region(
    every_model: dict[str, Path], name: str, sampling: Sampling
) -> None:
    """Both measured anew, row by row, on the models before and after."""
    rollouts, plain_logits = case(name)
    pair = make_pair(every_model[name], logits_budget=300)
    old = copy.deepcopy(pair.lm)
    context = make_context(pair, rollouts, QUICK, sampling=sampling, token_budget=60)
    credit = random_credit(context)
    metrics = update(context, credit)
    restriction = context.scored.restriction(tiny.whole(context.batch))
    with torch.no_grad():
        old_NV, new_NV = (
            restriction(torch.cat([plain_logits(lm, one) for one in rollouts])).log_softmax(-1)
            for lm in (old, pair.lm)
        )
    difference_NV = (new_NV - old_NV).nan_to_num()  # -inf less -inf, outside of the support
    kl = float((new_NV.exp() * difference_NV).sum(-1).mean())
    advantages_N = credit.advantages_BT[context.batch.mask_BT]
    advantages_N = (advantages_N - advantages_N.mean()) / advantages_N.std()
    drawn_N1 = chosen(rollouts)[:, None]
    ratio_N = (new_NV - old_NV).gather(-1, drawn_N1).squeeze(-1).exp()
    gain = float((ratio_N * advantages_N).mean())  # the old policy's objective is the mean of A, 0
    assert metrics["trust_region/failed"] == 0.0
    assert metrics["approx_kl"] == metrics["trust_region/kl"] == pytest.approx(kl, rel=1e-2)
    assert 0.003 < kl < 0.01
    assert metrics["trust_region/improvement"] == pytest.approx(gain, rel=1e-3)
    assert gain > 0.01


# Along the bare gradient of this one rollout the first try is 8 % too far: KL 0.0108
TOO_FAR = QUICK.model_copy(update={"cg_max_steps": 1, "cg_damping": 0.0})


def test_a_line_search_that_finds_no_step_leaves_every_bit_and_is_counted(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    before = snapshot(pair)
    only_one = TOO_FAR.model_copy(update={"line_search_max_iter": 1})
    metrics = update(make_context(pair, random_rollouts(1, seed=4), only_one))
    assert metrics["trust_region/failed"] == 1.0 and metrics["trust_region/line_search_steps"] == 1.0
    assert metrics["trust_region/kl"] > 0.01 and metrics["trust_region/improvement"] > 0.0
    assert metrics["approx_kl"] == 0.0
    assert moved(before, pair) == ["critic.head.weight", "critic.head.bias"]  # the critic learns all the same


def test_a_second_try_is_shorter(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    metrics = update(make_context(pair, random_rollouts(1, seed=4), TOO_FAR))
    assert metrics["trust_region/failed"] == 0.0 and metrics["trust_region/line_search_steps"] == 2.0
    assert metrics["approx_kl"] == pytest.approx(0.8**2 * 0.0108, rel=0.05)  # near its minimum a parabola
    assert metrics["trust_region/improvement"] > 0.0


def test_a_model_without_forward_derivatives_is_refused_at_the_start(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM

    folder = str(tmp_path / "bloom")
    BloomForCausalLM(BloomConfig(vocab_size=tiny.VOCAB, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(models["gpt2"]).save_pretrained(folder)
    with pytest.raises(InputError, match="trpo needs forward-mode derivatives, and model type bloom"):
        make_learner(Path(folder), TRPO())


def test_equal_rewards_teach_nothing(models: dict[str, Path]) -> None:
    """Whitened advantages are 0, and so is the gradient: no direction, no step, no division by 0."""
    pair = make_pair(models["gpt2"])
    before = snapshot(pair.policy)
    context = make_context(pair, random_rollouts(6), QUICK)
    ones_BT = context.batch.mask_BT.float()
    metrics = update(context, Credit(ones_BT, ones_BT))
    assert moved(before, pair.policy) == []
    assert metrics["gradient_norm/policy"] == 0.0 and metrics["trust_region/failed"] == 1.0
    assert metrics["trust_region/line_search_steps"] == 0.0


def test_an_infinite_gradient_is_refused_and_the_weights_stay(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    before = snapshot(pair)
    context = make_context(pair, random_rollouts(6), QUICK)
    credit = random_credit(context)
    credit.advantages_BT[2, 0] = torch.nan
    with pytest.raises(
        LearnerError, match=r"gradient is not finite \(norm nan\), so the weights were not changed"
    ):
        update(context, credit)
    assert moved(before, pair) == []


def test_an_error_in_the_line_search_puts_the_weights_back(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    pair = make_pair(models["gpt2"])
    before = snapshot(pair)
    monkeypatch.setattr(TrustRegionUpdate, "_measure", out_of_memory)
    with pytest.raises(MemoryError):
        update(make_context(pair, random_rollouts(6), QUICK))
    assert moved(before, pair) == []


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_the_critics_epochs_leave_the_policy_alone(
    every_model: dict[str, Path], name: str, separate: bool
) -> None:
    rollouts, _ = case(name)
    after = []
    for num_epochs in (1, 6):
        trunk = "separate" if separate else "shared"
        pair = make_pair(every_model[name], value_trunk=trunk)
        algorithm = QUICK.model_copy(update={"num_epochs": num_epochs})
        metrics = update(make_context(pair, rollouts, algorithm))
        assert metrics["update/epochs"] == num_epochs and metrics["update/steps"] == 2 * num_epochs
        after.append((snapshot(pair.policy), snapshot(pair.critic)))
    (once, critic_once), (often, critic_often) = after
    for parameter, expected in zip(often.values(), once.values(), strict=True):
        assert torch.equal(parameter, expected)
    assert any(not torch.equal(critic_often[name_of], critic_once[name_of]) for name_of in critic_once)


def test_the_critics_loss_falls(models: dict[str, Path]) -> None:
    losses = []
    for num_epochs in (1, 40):
        pair = make_pair(models["gpt2"])
        algorithm = QUICK.model_copy(update={"num_epochs": num_epochs, "learning_rate": 1e-2})
        losses.append(update(make_context(pair, random_rollouts(8), algorithm))["loss/value"])
    assert losses[1] < 0.9 * losses[0]  # means over all epochs


@pytest.mark.parametrize("name", ["llama_tied", "t5"])
def test_micro_batches_chunks_and_order_change_nothing(every_model: dict[str, Path], name: str) -> None:
    rollouts, _ = case(name)
    ends = []
    for budget, logits_budget in ((10_000, 2**24), (1, 2**24), (40, 111)):
        pair = make_pair(every_model[name], logits_budget)
        # conjugate gradients let rounding errors grow from step to step
        algorithm = QUICK.model_copy(update={"cg_max_steps": 4, "minibatch_size": None})
        backwards = budget == 40
        context = make_context(
            pair, rollouts[::-1] if backwards else rollouts, algorithm, token_budget=budget
        )
        credit = random_credit(make_context(pair, rollouts, algorithm))
        if backwards:
            credit = Credit(credit.advantages_BT.flip(0), credit.returns_BT.flip(0))
        update(context, credit)
        ends.append(torch.cat([p.detach().flatten() for p in pair.parameters()]))
    start = torch.cat([p.detach().flatten() for p in make_pair(every_model[name]).parameters()])
    whole, *others = [end - start for end in ends]
    for other in others:
        assert float((other - whole).norm() / whole.norm()) < 1e-3


@pytest.mark.parametrize("part", ["attn", "mlp", "wte"])
def test_what_is_frozen_stays_and_the_rest_takes_the_step(models: dict[str, Path], part: str) -> None:
    """As with adapters; `wte` is embedding and head at once."""
    pair = make_pair(models["gpt2"])
    for name, parameter in pair.policy.named_parameters():
        parameter.requires_grad_(part in name)
    before = snapshot(pair.policy)
    metrics = update(make_context(pair, random_rollouts(8), QUICK))
    assert metrics["trust_region/failed"] == 0.0 and 0.0 < metrics["approx_kl"] < 0.01
    assert set(moved(before, pair.policy)) == {name for name in before if part in name}


def test_dropout_is_off_in_a_trust_region(models: dict[str, Path]) -> None:
    """With it each pass would be another policy. The model's configuration asks for a tenth."""
    ends = []
    for dropout in (False, True):
        pair = make_pair(models["gpt2"], dropout=dropout)
        torch.manual_seed(1)
        update(make_context(pair, random_rollouts(8), QUICK))
        ends.append(snapshot(pair.policy))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_recomputed_activations_change_nothing(every_model: dict[str, Path], name: str) -> None:
    ends = []
    for recomputed in (False, True):
        pair = make_pair(every_model[name], gradient_checkpointing=recomputed)
        assert pair.lm.is_gradient_checkpointing == recomputed
        update(make_context(pair, case(name)[0], QUICK))
        ends.append(snapshot(pair.policy))
    for parameter, expected in zip(ends[1].values(), ends[0].values(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


def test_half_precision_still_keeps_within_the_trust_region(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    before = snapshot(pair.policy)
    metrics = update(make_context(pair, random_rollouts(16), QUICK, autocast="bfloat16"))
    assert metrics["trust_region/failed"] == 0.0 and 0.0 < metrics["approx_kl"] < 0.01
    assert all(p.dtype == torch.float32 for p in pair.parameters()) and moved(before, pair.policy)


def test_progress_ends_where_it_should(models: dict[str, Path]) -> None:
    seen: list[tuple[int, int]] = []
    pair = make_pair(models["gpt2"])
    context = make_context(pair, random_rollouts(6), QUICK)
    object.__setattr__(context, "advance", lambda done, total: seen.append((done, total)))
    update(context)
    done = [num_done for num_done, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1]
    assert {total for _, total in seen} == {
        6 * (1 + 8 + 10 + 2)
    }  # gradient, products, tries, the critic's epochs


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.long)])
def test_the_rewarded_token_becomes_almost_certain(models: dict[str, Path], name: str) -> None:
    """On the learner's own path: scored, credited, updated, the version counted."""
    algorithm = TRPO(target_kl=0.05, num_epochs=4, minibatch_size=32)
    learner = make_learner(models[name], algorithm)
    token = 7
    assert probability(learner, token) < 0.2
    for _ in range(40):
        metrics = learner.update(play(learner, 64, 1, lambda answer: float(answer == [token])))
        assert metrics["approx_kl"] < 0.05
        if probability(learner, token) > 0.9:
            break
    assert probability(learner, token) > 0.9


def test_an_entropy_bonus_acts_on_the_step(models: dict[str, Path]) -> None:
    """Nothing else does here, and it flattens the policy."""
    pair = make_pair(models["gpt2"])
    algorithm = QUICK.model_copy(update={"entropy_coef": 1.0})
    context = make_context(pair, random_rollouts(8), algorithm)
    zeros_BT = torch.zeros_like(context.batch.rewards_BT)
    before = float(context.scored.entropies_BT[context.batch.mask_BT].mean())  # type: ignore[index]
    metrics = update(context, Credit(zeros_BT, zeros_BT))
    again = make_context(pair, random_rollouts(8), algorithm)
    after = float(again.scored.entropies_BT[again.batch.mask_BT].mean())  # type: ignore[index]
    assert metrics["trust_region/improvement"] == pytest.approx(after - before, rel=1e-3)
    assert after > before + 0.01
