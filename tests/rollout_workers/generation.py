"""Models with clear opinions, the Hugging Face pass that engines are judged by, and a loop to step them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from contracts.rollout import Sampling
from learner.weight_publisher import publish
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.settings import RolloutSettings
from tests.models import Architecture, make_tiny_model

WINDOW = 256
EOS = 1
VOCAB = tuple("abcdefghijklmnopqrst")  # with the three special tokens: 23
SETTINGS = RolloutSettings(max_concurrent=64, kv_cache_gib=0.25, dtype="float32")

Name = Literal["llama", "llama-tied", "gpt2", "gpt2-untied"]
NAMES: tuple[Name, ...] = ("llama", "llama-tied", "gpt2", "gpt2-untied")


def make_model(folder: Path, name: Name) -> Path:
    """A tiny model whose next-token distributions are far from uniform, with its head tied or not."""
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
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def perturb(lm: Any, seed: int, scale: float = 0.05, only: str = "") -> None:
    """Add noise to every parameter whose name contains `only`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in lm.named_parameters():
        if only in name:
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def load(engine: Engine, lm: Any, version: int) -> None:
    manifest, arrays = publish(lm, version, "float32")
    engine.load_weights(manifest, {name: array.copy() for name, array in arrays.items()})


@torch.no_grad()
def logits_TV(lm: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """One teacher-forced pass without a cache: the logits that each of `tokens` was drawn from."""
    ids = torch.tensor([[*prompt, *tokens]])
    return lm(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def logprobs_T(lm: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    logprobs_TV = logits_TV(lm, prompt, tokens).log_softmax(-1)
    return logprobs_TV.gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


def worst_difference(lm: Any, requests: Iterable[Request], generations: dict[int, Generation]) -> float:
    """The largest |engine's log-probability − Hugging Face's| over all tokens of all requests."""
    differences = [
        (logprobs_T(lm, r.tokens, generations[r.id].tokens) - torch.tensor(generations[r.id].logprobs)).abs()
        for r in requests
    ]
    return float(torch.cat(differences).max())


def finish(engine: Engine, requests: Iterable[Request] = ()) -> dict[int, Generation]:
    """Add the requests and step until nothing is left; each request must come back once."""
    for request in requests:
        engine.add(request)
    found: dict[int, Generation] = {}
    while engine.num_unfinished:
        for generation in engine.step():
            assert generation.request_id not in found
            found[generation.request_id] = generation
    return found


def prompts_of_many_lengths(count: int, **sampling: Any) -> list[Request]:
    """Requests with prompts of 1 to 12 tokens; up to 20 new tokens unless told otherwise."""
    options = Sampling(**({"max_tokens": 20} | sampling))
    return [
        Request(i, tuple(3 + (5 * i + 7 * k) % 20 for k in range(1 + i % 12)), options, seed=1000 + i)
        for i in range(count)
    ]
