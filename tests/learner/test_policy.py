"""The actor-critic on real transformers models gives a plain forward pass's numbers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from contracts.errors import InputError
from learner.batches.batching import collate
from learner.models.actor_critic import ActorCritic, frozen_copy, load_actor_critic
from learner.models.policy import check_head
from learner.settings import ModelSettings
from tests.learner.tiny import (
    CONFIGS,
    VOCAB,
    make_pair,
    plain_logits,
    plain_logprobs,
    random_rollouts,
    whole,
)

ROLLOUTS = random_rollouts(9)
BATCH = collate(ROLLOUTS)


def plain(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def gradients(policy: ActorCritic, loss: Tensor) -> dict[str, Tensor]:
    policy.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def actor_and_critic_loss(policy: ActorCritic) -> Tensor:
    out = policy(whole(BATCH), with_entropy=True)
    assert out.entropies_N is not None and out.values_N is not None
    return out.logprobs_N.sum() + out.entropies_N.square().sum() + out.values_N.square().sum()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("logits_budget", [2**26, 5 * VOCAB])
@torch.no_grad()
def test_log_probabilities_and_entropies_in_a_padded_batch_are_those_of_each_row_alone(
    models: dict[str, Path], name: str, logits_budget: int
) -> None:
    lm = plain(models[name])
    out = make_pair(models[name], logits_budget)(whole(BATCH), with_entropy=True)
    torch.testing.assert_close(
        out.logprobs_N, torch.cat([plain_logprobs(lm, one) for one in ROLLOUTS]), atol=1e-5, rtol=1e-5
    )
    logits = torch.cat([plain_logits(lm, one) for one in ROLLOUTS])
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(out.entropies_N, entropies, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_reference_is_the_model_of_the_files_and_frozen(models: dict[str, Path], name: str) -> None:
    reference = frozen_copy(make_pair(models[name]).policy)
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    lm = plain(models[name])
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(lm, one) for one in ROLLOUTS])
    torch.testing.assert_close(reference(whole(BATCH)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama_tied"])
def test_logits_are_made_for_the_models_own_tokens_only(models: dict[str, Path], name: str) -> None:
    policy = make_pair(models[name])
    assert len(policy(whole(BATCH)).hidden_NH) == BATCH.num_tokens < BATCH.tokens_SL.numel()


def test_values_begin_at_zero_and_can_be_left_out(models: dict[str, Path]) -> None:
    policy = make_pair(models["llama"])
    assert policy(whole(BATCH)).values_N.tolist() == [0.0] * BATCH.num_tokens
    assert policy(whole(BATCH), with_values=False).values_N is None


def test_a_value_is_the_head_on_the_state_before_the_token(models: dict[str, Path]) -> None:
    policy = make_pair(models["gpt2"])
    torch.nn.init.normal_(policy.critic.head.weight)
    with torch.no_grad():
        expected = [
            policy.critic.head(policy.lm.base_model(torch.tensor([one.tokens])).last_hidden_state[0])[t - 1]
            for one in ROLLOUTS
            for t, mine in enumerate(one.loss_mask)
            if mine
        ]
    torch.testing.assert_close(policy(whole(BATCH)).values_N, torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied"])
def test_a_separate_critic_shares_no_parameter_and_gives_the_policy_no_gradient(
    models: dict[str, Path], name: str
) -> None:
    policy = make_pair(models[name], value_trunk="separate")
    torch.nn.init.normal_(policy.critic.head.weight)
    actor = {parameter.data_ptr() for _, parameter in policy.actor_parameters()}
    critic = {parameter.data_ptr() for _, parameter in policy.critic_parameters()}
    assert not actor & critic
    assert actor | critic == {parameter.data_ptr() for parameter in policy.parameters()}
    reached = gradients(policy, policy(whole(BATCH)).values_N.square().sum())
    assert reached and not any(name.startswith("policy.") for name in reached)
    assert any(gradient.any() for name, gradient in reached.items() if name.startswith("critic.trunk."))
    reached = gradients(policy, policy(whole(BATCH)).logprobs_N.sum())
    assert reached and all(name.startswith("policy.") for name in reached)


def test_a_shared_trunk_learns_from_both(models: dict[str, Path]) -> None:
    policy = make_pair(models["llama"])
    torch.nn.init.normal_(policy.critic.head.weight)
    reached = gradients(policy, policy(whole(BATCH)).values_N.square().sum())
    assert any(name.startswith("policy.") and gradient.any() for name, gradient in reached.items())
    assert {name for name, _ in policy.critic_parameters()} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_dropout_is_off(models: dict[str, Path], name: str, gradient_checkpointing: bool) -> None:
    policy = make_pair(models[name], value_trunk="separate", gradient_checkpointing=gradient_checkpointing)
    torch.nn.init.normal_(policy.critic.head.weight)
    first, second = policy(whole(BATCH)), policy(whole(BATCH))
    assert torch.equal(first.logprobs_N, second.logprobs_N)
    assert torch.equal(first.values_N, second.values_N)
    noisy = plain(models[name]).train()  # the files do ask for dropout
    assert not torch.equal(plain_logprobs(noisy, ROLLOUTS[0]), plain_logprobs(noisy, ROLLOUTS[0]))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
def test_gradient_checkpointing_keeps_less_and_gives_the_same_gradients(
    models: dict[str, Path], name: str, value_trunk: str
) -> None:
    passes = []
    for checkpointing in (False, True):
        policy = make_pair(models[name], value_trunk=value_trunk, gradient_checkpointing=checkpointing)
        policy.train()
        torch.nn.init.constant_(policy.critic.head.weight, 0.1)
        kept: list[int] = []

        def pack(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = actor_and_critic_loss(policy)
        passes.append((sum(kept), gradients(policy, loss)))
    (all_kept, plainly), (few_kept, checkpointed) = passes
    assert few_kept < all_kept / 3
    torch.testing.assert_close(checkpointed, plainly, atol=1e-5, rtol=1e-5)


def test_chunks_of_logits_change_no_gradient_of_the_model(models: dict[str, Path]) -> None:
    for name in ("gpt2", "llama_tied"):
        at_once, in_chunks = make_pair(models[name]), make_pair(models[name], 5 * VOCAB)
        torch.testing.assert_close(
            gradients(in_chunks, actor_and_critic_loss(in_chunks)),
            gradients(at_once, actor_and_critic_loss(at_once)),
            atol=1e-4,
            rtol=1e-4,
        )


def test_what_stands_in_the_padding_is_seen_by_nobody(models: dict[str, Path]) -> None:
    tokens = BATCH.tokens_SL.clone()
    for row, length in enumerate(BATCH.lengths_S.tolist()):
        tokens[row, length:] = 5
    assert not torch.equal(tokens, BATCH.tokens_SL)
    rubbish = whole(replace(BATCH, tokens_SL=tokens))
    for name in ("gpt2", "llama"):
        policy = make_pair(models[name])
        assert torch.equal(policy(rubbish).logprobs_N, policy(whole(BATCH)).logprobs_N)


def test_a_head_that_scales_its_logits_in_an_unknown_way_is_refused(
    models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(models["llama"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"logit_scale": 2.0}))  # Llama ignores it
    with pytest.raises(InputError, match=r"model type llama: its logits differ by .* not supported"):
        make_pair(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"policy": "collections:OrderedDict"},
            "collections:OrderedDict: OrderedDict is not a policy",
        ),
        ({"policy": "lienar"}, "model.policy=lienar: no such model.policy"),
        ({"critic": "torch.nn:Identity"}, "model.critic=torch.nn:Identity: Identity is not a critic"),
        ({"critic": "collections:OrderedDict"}, "OrderedDict is not a critic"),
    ],
)
def test_a_class_that_is_no_policy_and_no_critic_is_refused(
    models: dict[str, Path], options: dict[str, str], message: str
) -> None:
    settings = ModelSettings(path=str(models["gpt2"]), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        load_actor_critic(settings, 2**20, torch.device("cpu"))


def test_a_head_behind_a_further_layer_is_refused(models: dict[str, Path]) -> None:
    policy = make_pair(models["gpt2"]).policy
    check_head(policy)
    head = policy.lm.lm_head
    policy.lm.lm_head = torch.nn.Sequential(torch.nn.Tanh(), head)
    policy.lm.get_output_embeddings = lambda: head
    with pytest.raises(InputError, match="not supported"):
        check_head(policy)
