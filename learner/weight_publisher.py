"""A version of the weights as arrays that cross process borders, with a probe that proves their arrival."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contracts.weights import Probe, WeightManifest
from learner.adapters import Adapter
from learner.merged_weights import changed_parameters, is_adapted
from learner.policy import family
from learner.ranks import ALONE, Ranks
from learner.sharding import whole

PROBE_TOKENS = 24
LOGITS_BUDGET = 2**26  # a probe never needs more
# float32 engines agree to 1e-5; bfloat16 ones round each logit to three digits.
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}


def publish(
    lm: nn.Module,
    version: int,
    engine_dtype: str,
    mask_version: int | None = None,
    served: Adapter | None = None,
    ranks: Ranks = ALONE,
) -> tuple[WeightManifest, dict[str, np.ndarray[Any, Any]]]:
    """The language model's parameters by Hugging Face name; tied ones once. Of a model with an adapter those
    that are not as in its files, merged: whoever loads them has begun with the files.

    On a CPU the arrays are views of the parameters: they must be copied (Ray's object store does)
    before the next update. Of several ranks the first has them, and has put each together in its turn.

    Args:
        served: the adapter, where workers are to use it as it is: then its matrices alone are published.
    """
    config, tensors = served.published() if served else (None, published_parameters(lm))
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    arrays = gathered(tensors, ranks)
    with ranks.at_hand():
        made = probe(lm, PROBE_TOLERANCE[engine_dtype])
    return WeightManifest(version, dtypes, num_bytes, made, mask_version, config), arrays


def arrays_of(lm: nn.Module, ranks: Ranks = ALONE) -> dict[str, np.ndarray[Any, Any]]:
    return gathered(published_parameters(lm), ranks)


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for name, tensor in tensors.items():
        all_rows = whole(tensor)  # which all ranks take part in
        if ranks.is_first:
            arrays[name] = as_array(all_rows)
    return arrays


def published_parameters(lm: nn.Module) -> dict[str, Tensor]:
    return dict(changed_parameters(lm) if is_adapted(lm) else lm.named_parameters())


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@torch.no_grad()
def probe(lm: nn.Module, tolerance: float) -> Probe:
    """Log-probabilities of a fixed text; its tokens are spread over the vocabulary, so that any
    worker can make the same check without being told what text it is.
    """
    policy = family(lm)(lm, LOGITS_BUDGET)
    window = getattr(lm.config, "max_position_embeddings", None) or PROBE_TOKENS + 1
    # The engine that scores it must have room for a token of its own behind it.
    ids = [(7 + 7919 * i) % policy.vocab_size for i in range(min(PROBE_TOKENS, window - 1))]
    tokens = torch.tensor(ids, device=next(lm.parameters()).device)
    logits_LV = policy.logits(policy.probe_states(tokens)).float()
    logprobs = logits_LV.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
    return Probe(tuple(ids), tuple(logprobs.tolist()), tolerance)
