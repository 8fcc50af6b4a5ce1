"""Models with clear opinions, the Hugging Face pass that engines are judged by, and a loop to step them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from contracts.rollout import Sampling
from contracts.weights import Probe, WeightManifest
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.settings import RolloutSettings
from tests.models import Architecture, Seq2Seq, make_tiny_model

WINDOW = 256
EOS = 1
VOCAB = tuple("abcdefghijklmnopqrst")  # with the three special tokens: 23
SETTINGS = RolloutSettings(max_concurrent=64, kv_cache_gib=0.25, dtype="float32")

CausalName = Literal["llama", "llama-tied", "gpt2", "gpt2-untied"]
Name = Literal[CausalName, Seq2Seq]
NAMES: tuple[CausalName, ...] = get_args(CausalName)
SEQ2SEQ: tuple[Seq2Seq, ...] = get_args(Seq2Seq)


def make_model(folder: Path, name: Name) -> Path:
    """A tiny model whose next-token distributions are far from uniform, with its head tied or not."""
    if name == "t5" or name == "mt5" or name == "bart":
        sharpness = 7.5 if name == "bart" else 1.5
        return make_tiny_model(folder, architecture=name, vocab=VOCAB, window=WINDOW, sharpness=sharpness)
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture: Architecture = "llama" if name.startswith("llama") else "gpt2"
    make_tiny_model(folder, architecture=architecture, vocab=VOCAB, window=WINDOW)
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = name in ("llama-tied", "gpt2")
    config.initializer_range = 0.15
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def load_lm(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    is_seq2seq = AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if is_seq2seq else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def perturb(lm: Any, seed: int, scale: float = 0.05, only: str = "") -> None:
    """Add noise to every parameter whose name contains `only`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in lm.named_parameters():
        if only in name:
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def load(engine: Engine, lm: Any, version: int) -> None:
    engine.load_weights(*weights(lm, version))


def weights(lm: Any, version: int, mask_version: int | None = None) -> tuple[WeightManifest, dict[str, Any]]:
    """Copies of the model's parameters as they are sent to engines."""
    arrays = {name: p.detach().numpy().copy() for name, p in lm.named_parameters()}
    manifest = WeightManifest(
        version, dict.fromkeys(arrays, "float32"), 0, Probe((), (), 0.0), mask_version=mask_version
    )
    return manifest, arrays


@torch.no_grad()
def logits_TV(lm: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """One teacher-forced pass without a cache: the logits that each of `tokens` was drawn from."""
    if lm.config.is_encoder_decoder:
        read = torch.tensor([[lm.config.decoder_start_token_id, *tokens[:-1]]])
        return lm(input_ids=torch.tensor([prompt]), decoder_input_ids=read, use_cache=False).logits[0].float()
    ids = torch.tensor([[*prompt, *tokens]])
    return lm(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def logprobs_T(lm: Any, prompt: Sequence[int], tokens: Sequence[int], min_tokens: int = 0) -> Tensor:
    """Log-probabilities of `tokens`, unwarped; the first `min_tokens` of them could not be the end token."""
    rows_TV = logits_TV(lm, prompt, tokens)
    rows_TV[:min_tokens, EOS] = -torch.inf
    return rows_TV.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


def worst_difference(lm: Any, requests: Iterable[Request], generations: dict[int, Generation]) -> float:
    """The largest |engine's log-probability − Hugging Face's| over all tokens of all requests."""
    differences = []
    for request in requests:
        generation = generations[request.id]
        expected_T = logprobs_T(lm, request.tokens, generation.tokens, request.sampling.min_tokens)
        differences.append((expected_T - torch.tensor(generation.behavior_logprobs)).abs())
    return float(torch.cat(differences).max())


def finish(engine: Engine, requests: Iterable[Request] = ()) -> dict[int, Generation]:
    """Add the requests and step until nothing is left; each request must come back once."""
    for request in requests:
        engine.add(request)
    generations: dict[int, Generation] = {}
    while engine.num_unfinished:
        for generation in engine.step():
            assert generation.request_id not in generations
            generations[generation.request_id] = generation
    return generations


def prompts_of_many_lengths(count: int, **sampling: Any) -> list[Request]:
    """Requests with prompts of 1 to 12 tokens; up to 20 new tokens unless told otherwise."""
    options = Sampling(**({"max_tokens": 20} | sampling))
    return [
        Request(i, tuple(3 + (5 * i + 7 * k) % 20 for k in range(1 + i % 12)), options, seed=1000 + i)
        for i in range(count)
    ]


def padded(lm: Any, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """A batch for `generate`: padded on the left, for an encoder on the right."""
    width = max(len(prompt) for prompt in prompts)
    rows = [([*prompt], [0] * (width - len(prompt))) for prompt in prompts]
    on_the_right = lm.config.is_encoder_decoder
    ids = [tokens + fill if on_the_right else fill + tokens for tokens, fill in rows]
    seen = [[1] * len(t) + fill if on_the_right else fill + [1] * len(t) for t, fill in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(seen)}


def generated_by_transformers(lm: Any, requests: Sequence[Request], **options: Any) -> list[tuple[int, ...]]:
    """Tokens that `generate` writes without sampling, the end token included."""
    sampling = requests[0].sampling
    batch = padded(lm, [request.tokens for request in requests])
    rows = lm.generate(
        **batch,
        do_sample=False,
        max_new_tokens=sampling.max_tokens,
        min_new_tokens=sampling.min_tokens or None,
        forced_eos_token_id=None,
        **options,
    )
    begin = 1 if lm.config.is_encoder_decoder else batch["input_ids"].shape[1]
    return [until_end(row) for row in rows[:, begin:].tolist()]


def until_end(tokens: Sequence[int]) -> tuple[int, ...]:
    """Up to the first end token; `generate` fills the rest of a row with padding.

    >>> until_end([5, 1, 0])
    (5, 1)
    """
    return tuple(tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens)


def with_sampling(requests: Iterable[Request], **sampling: Any) -> list[Request]:
    """The same requests, sampled otherwise."""
    return [replace(request, sampling=replace(request.sampling, **sampling)) for request in requests]
