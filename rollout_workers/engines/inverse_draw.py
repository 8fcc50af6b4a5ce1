"""Draw vLLM's tokens on a CPU with one random number a row, as the transformers engine does.

vLLM's draw makes a random number for each word of the vocabulary. With 64 rows and 50,257 words this takes as
long as the whole pass of a small model.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rollout_workers.engines.sampling import draw


def install_draw(runner: Any) -> None:
    """Give the sampler of vLLM's model runner this draw, in the way that vLLM uses."""
    runner.sampler.topk_topp_sampler.forward = drawn


def drawn(
    logits_BV: Tensor, generators: Mapping[int, torch.Generator], k: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a token of each row (B,), and all log-probabilities (B, V) from which it was drawn.

    Args:
        generators: generators of rows with a seed; other rows share torch's.
        k: each row's top-k (B,); None: no row has one.
        p: each row's top-p (B,); None: no row has one.

    Raises:
        WorkerError: a logit is NaN or +inf.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    logprobs_BV = apply_top_k_top_p(logits_BV, k, p).log_softmax(-1, dtype=torch.float32)
    uniform_B = torch.rand(len(logits_BV), dtype=torch.float64)
    for row, generator in generators.items():
        uniform_B[row] = torch.rand((), dtype=torch.float64, generator=generator)
    return draw(logprobs_BV.exp(), uniform_B), logprobs_BV
