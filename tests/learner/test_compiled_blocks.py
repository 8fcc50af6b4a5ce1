"""Compiled blocks: the plain blocks' numbers to the bit, few graphs, and plain blocks where a graph fails."""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.algorithms.grpo import GRPO
from learner.algorithms.trpo import TRPO
from learner.learner import Learner
from learner.models.attention import attend_in_float32, rounding_attention
from learner.models.compiled_blocks import COMPILED_KINDS, CompiledBlocks, blocks_of, sort_of
from learner.passes.compiling import compile_models, why_plain
from learner.passes.scoring import Models
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.seq2seq import Name, single_turns
from tests.learner.tiny import make_learner, random_rollouts, snapshot, without_times

EXACT = "aot_eager"  # graphs as the compiler gets them, run by the plain blocks' kernels
QUICK = ("gpt2",)
SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "bart": {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
    },
}
NUM_SORTS = {"t5": 4, "bart": 2}  # of blocks; all others have one
ONE_BLOCK = {"t5": {"num_decoder_layers": 1}, "bart": {"decoder_layers": 1}}  # in the decoder


@pytest.fixture(autouse=True)
def _no_graphs_before() -> Iterator[None]:
    attend_in_float32()
    yield
    torch._dynamo.reset()


def language_model(kind: str, **sizes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    usual = {"vocab_size": 37, **OTHER_SIZES[kind]} if kind in OTHER_SIZES else SIZES
    config = AutoConfig.for_model(kind, **{**usual, **sizes})
    lm = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return lm.eval()


def numbers(lm: Any, num_sequences: int, num_tokens: int) -> list[Tensor]:
    """Log-probabilities without gradients and with them, and the gradients."""
    tokens_BL = torch.arange(num_sequences * num_tokens).view(num_sequences, num_tokens) * 7 % 37
    inputs: dict[str, Any] = {"input_ids": tokens_BL, "use_cache": False}
    if lm.config.is_encoder_decoder:
        seen_BL = torch.ones_like(tokens_BL)
        seen_BL[0, -1] = 0
        inputs |= {"attention_mask": seen_BL, "decoder_input_ids": tokens_BL[:, :-1]}
    with torch.no_grad():
        scored_BLV = lm(**inputs).logits.log_softmax(-1)
    logprobs_BLV = lm(**inputs).logits.log_softmax(-1)
    lm.zero_grad()
    logprobs_BLV.square().mean().backward()
    gradients = [parameter.grad for parameter in lm.parameters() if parameter.grad is not None]
    return [scored_BLV, logprobs_BLV, *gradients]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def sum_by_blocks(lm: Any) -> None:
    """Let each block of a decoder add its own gradients of the encoder's states, as a graph does."""

    def enters(block: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.view_as(value) if isinstance(value, Tensor) and value.requires_grad else value
            for value in inputs
        )

    for block in blocks_of(lm):
        block.register_forward_pre_hook(enters)


def check_bits_and_graphs(plain: Any, lm: Any) -> None:
    kind, compiled = lm.config.model_type, CompiledBlocks(EXACT)
    names, num_sorts = list(lm.state_dict()), len(set(map(sort_of, blocks_of(lm))))
    compiled.add(lm)
    assert list(lm.state_dict()) == names
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for shape in ((3, 7), (2, 5), (4, 11), (7, 4), (5, 9)):
            assert same(numbers(lm, *shape), numbers(plain, *shape)), (kind, shape)
    assert compiled.num_graphs == 2 * num_sorts


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.long) for k in sorted(COMPILED_KINDS)]
)
def test_every_type_has_the_plain_numbers_to_the_bit_and_few_graphs(kind: str) -> None:
    plain = language_model(kind)
    lm = copy.deepcopy(plain)
    assert len(set(map(sort_of, blocks_of(lm)))) == NUM_SORTS.get(kind, 1)
    if lm.config.is_encoder_decoder:
        sum_by_blocks(plain)
    check_bits_and_graphs(plain, lm)


@pytest.mark.long
@pytest.mark.parametrize("kind", ONE_BLOCK)
def test_an_encoder_has_the_plain_gradients_where_one_block_reads_it(kind: str) -> None:
    plain = language_model(kind, **ONE_BLOCK[kind])
    check_bits_and_graphs(plain, copy.deepcopy(plain))


@pytest.mark.long
def test_copies_use_their_own_weights_and_the_graphs_that_are_there() -> None:
    lm, compiled = language_model("gpt2"), CompiledBlocks(EXACT)
    compiled.add(lm)
    numbers(lm, 3, 7)
    num_graphs, before = compiled.num_graphs, numbers(lm, 3, 5)
    other = copy.deepcopy(lm)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.weight.mul_(2)
    assert not same(numbers(other, 3, 5), before)
    assert same(numbers(lm, 3, 5), before)
    assert compiled.num_graphs == num_graphs


def test_kept_prompts_single_tokens_and_rounding_probes_stay_plain() -> None:
    lm, compiled = language_model("qwen2"), CompiledBlocks(EXACT)
    compiled.add(lm)
    tokens_BL = torch.ones(2, 6, dtype=torch.long)
    with torch.no_grad():
        cache = lm(input_ids=tokens_BL, use_cache=True).past_key_values
        lm(input_ids=tokens_BL, past_key_values=cache, use_cache=True)
        lm(input_ids=tokens_BL[:, :1], use_cache=False)
        with rounding_attention():
            lm(input_ids=tokens_BL, use_cache=False)
    assert compiled.num_graphs == 0


@pytest.mark.long
def test_bfloat16_under_autocast_is_the_same_to_the_bit() -> None:
    """Attention in float32 on a CPU asks for its context in a way that a graph can follow."""
    plain = language_model("qwen2")
    lm = copy.deepcopy(plain)
    compiled = CompiledBlocks(EXACT)
    compiled.add(lm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(numbers(lm, 3, 7), numbers(plain, 3, 7))
    assert compiled.failure is None and compiled.num_graphs == 2


def compile_learner(learner: Learner, backend: Any) -> CompiledBlocks:
    return compile_models(
        Models(learner.pair, learner.reference, learner.mask),
        *(learner.model_settings, learner.algorithm),
        learner.settings.model_copy(update={"compile": True}),
        *(learner.precision, learner.device),
        backend,
    )


@pytest.mark.long
@pytest.mark.parametrize("rounded", [False, True])
def test_fifty_updates_of_changing_lengths_need_no_further_graph(
    models: dict[str, Path], rounded: bool
) -> None:
    options: Any = {"autocast": "bfloat16", "param_dtype": "bfloat16"} if rounded else {}
    plain, learner = (make_learner(models["llama"], GRPO(), iterations=50, **options) for _ in range(2))
    assert bool(len(learner.masters)) == rounded
    compiled = compile_learner(learner, EXACT)
    assert compiled.failure is None
    assert all(parameter.grad is None for parameter in learner.pair.parameters())
    first = 0
    for iteration in range(50):
        rollouts = random_rollouts(4 + iteration % 3, seed=iteration)
        got, expected = (without_times(side.update(rollouts)) for side in (learner, plain))
        assert got == expected
        first = compiled.num_graphs if iteration == 0 else first
    for name, parameter in snapshot(learner.pair).items():
        assert torch.equal(parameter, snapshot(plain.pair)[name])
    assert compiled.failure is None
    # Two of the start, the frozen reference's, and one more for training at this small width
    assert compiled.num_graphs == first <= 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_updates_of_encoder_decoders_have_the_plain_numbers(seq2seq: dict[Name, Path], name: Name) -> None:
    plain, learner = (make_learner(seq2seq[name], GRPO(), iterations=8) for _ in range(2))
    sum_by_blocks(plain.pair.lm)
    compiled = compile_learner(learner, EXACT)
    for iteration in range(8):
        rollouts = [replace(one, group=0) for one in single_turns(5 + iteration % 3, seed=iteration)]
        got, expected = (without_times(side.update(rollouts)) for side in (learner, plain))
        assert got == expected
    for parameter_name, parameter in snapshot(learner.pair).items():
        assert torch.equal(parameter, snapshot(plain.pair)[parameter_name])
    assert compiled.failure is None
    # Two of the start, the frozen reference's, and one more for training at this small width
    assert compiled.num_graphs <= 4 * NUM_SORTS[name]


def test_where_a_graph_fails_blocks_stay_plain_with_one_warning(models: dict[str, Path]) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here\nand much advice")

    learner, plain = (make_learner(models["llama"], GRPO()) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="run without compilation.*no compiler here") as heard:
        compiled = compile_learner(learner, fails)
    assert len(heard) == 1
    assert compiled.failure is not None and "advice" not in compiled.failure
    rollouts = random_rollouts(4)
    assert without_times(learner.update(rollouts)) == without_times(plain.update(rollouts))


def test_where_a_graph_computes_something_else_blocks_stay_plain(models: dict[str, Path]) -> None:
    def doubles(graph: Any, inputs: Any) -> Any:
        return lambda *values: [2 * value for value in graph(*values)]

    learner = make_learner(models["llama"], GRPO())
    with pytest.warns(RuntimeWarning, match="numbers differ by .* of their norm"):
        assert compile_learner(learner, doubles).failure is not None


def test_what_stays_plain_says_why() -> None:
    def why(learner: Any = None, algorithm: Any = None, **model: Any) -> str:
        settings = ModelSettings(path="m", **model), LearnerSettings(**learner or {})
        return str(why_plain(*settings, algorithm or GRPO()))

    assert why() == "None"
    assert "again" in why(gradient_checkpointing=True)
    assert "policy" in why(policy="package.module:Class")
    assert "forward" in why(algorithm=TRPO())
    assert "rows" in why({"num_processes": 2}) and "rows" in why({"offload": True})
