"""Operations of passes: beside PyTorch's own counter, and the share of a card that they come to."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.distributed.cards import card_of
from learner.optimization.kl_control import KLSettings
from learner.passes.operations import Passes, passes_of, products_of

GPT2 = GPT2Config(vocab_size=48, n_positions=32, n_embd=16, n_layer=2, n_head=2)
LLAMA = LlamaConfig(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="eager",  # whose products PyTorch counts
    head_dim=8,  # so that the query heads together are wider than the model
    tie_word_embeddings=False,
)


@pytest.mark.parametrize("lm", [GPT2LMHeadModel(GPT2), LlamaForCausalLM(LLAMA)], ids=["gpt2", "llama"])
def test_a_forward_pass_needs_what_pytorch_counts(lm: PreTrainedModel) -> None:
    texts, length = 3, 7
    tokens = torch.zeros(texts, length, dtype=torch.long)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        lm(input_ids=tokens)
    # PyTorch counts each pair of tokens, of which causal attention needs half.
    expected = products_of(lm).forward(texts * length, texts * length, 2 * texts * length**2)
    assert counter.get_total_flops() == expected


def test_the_passes_of_grpo_with_a_reference_are_nine_n_t_with_two_steps() -> None:
    compared = GRPO(minibatch_size=4, kl=KLSettings(placement="loss", coefficient=0.04))
    passes = passes_of(compared, 8, 1.0, separate_critic=False)
    # 2·N·T each for old and reference scores, 6·N·T for the update: 10; without the old scores of half, 9
    assert passes.operations(forward=2.0) == 10.0
    assert passes_of(compared, 8, 0.5, separate_critic=False).operations(forward=2.0) == 9.0
    assert passes.trained(forward=2.0) == 6.0


def test_a_reference_that_only_measures_reads_a_part() -> None:
    measured = GRPO(kl=KLSettings(placement="loss", coefficient=0, measure_every=4))
    assert passes_of(measured, 8, 0.0, separate_critic=False) == Passes(0.0, 0.25, 1.0)
    alone = GRPO(kl=KLSettings(placement="loss", coefficient=0, measure_every=0))
    assert passes_of(alone, 8, 0.0, separate_critic=False).reference == 0.0


def test_a_critic_with_a_trunk_of_its_own_doubles_the_policys_passes() -> None:
    ppo = PPO(num_epochs=3)
    shared, separate = (passes_of(ppo, 8, 1.0, separate_critic=critic) for critic in (False, True))
    assert (separate.scoring, separate.training) == (2 * shared.scoring, 2 * shared.training) == (2.0, 6.0)
    assert separate.reference == shared.reference
    assert passes_of(ppo, 8, 1.0, separate_critic=False, epochs=1.5).training == 1.5


def test_a_card_has_the_rates_of_its_own_name() -> None:
    flops = {name: card.flops for name in NAMES if (card := card_of(f"NVIDIA {name}")) is not None}
    assert flops == {
        "H100 PCIe": 756e12,
        "H100 80GB HBM3": 989e12,
        "H100 NVL": 835e12,
        "L40S": 362e12,
        "L40": 181e12,
        "L4": 121e12,
    }


KNOWN = ("H100 PCIe", "H100 80GB HBM3", "H100 NVL", "L40S", "L40", "L4")
OTHERS = ("GeForce GTX 1080", "RTX A1000", "A10G", "GH200 480GB", "GeForce RTX 4090 Laptop GPU")
NAMES = (*KNOWN, *OTHERS)
