"""A version of the weights as arrays that cross process borders, with a probe that proves their arrival."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contracts.weights import Probe, WeightManifest

PROBE_TOKENS = 24
# float32 engines agree to 1e-5; bfloat16 ones round each logit to three digits.
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}


def publish(
    lm: nn.Module, version: int, engine_dtype: str
) -> tuple[WeightManifest, dict[str, np.ndarray[Any, Any]]]:
    """The language model's parameters by Hugging Face name; tied ones once.

    On a CPU the arrays are views of the parameters: they must be copied (Ray's object store does)
    before the next update.
    """
    arrays = {name: as_array(parameter) for name, parameter in lm.named_parameters()}
    dtypes = {name: str(p.dtype).removeprefix("torch.") for name, p in lm.named_parameters()}
    num_bytes = sum(array.nbytes for array in arrays.values())
    return WeightManifest(version, dtypes, num_bytes, probe(lm, PROBE_TOLERANCE[engine_dtype])), arrays


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@torch.no_grad()
def probe(lm: nn.Module, tolerance: float) -> Probe:
    """Log-probabilities of a fixed text; its tokens are spread over the vocabulary, so that any
    worker can make the same check without being told what text it is.
    """
    vocab_size = lm.get_output_embeddings().weight.shape[0]
    window = getattr(lm.config, "max_position_embeddings", None) or PROBE_TOKENS + 1
    # The engine that scores it must have room for a token of its own behind it.
    ids = [(7 + 7919 * i) % vocab_size for i in range(min(PROBE_TOKENS, window - 1))]
    tokens = torch.tensor(ids, device=next(lm.parameters()).device)
    logits_LV = lm(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
    logprobs = logits_LV.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
    return Probe(tuple(ids), tuple(logprobs.tolist()), tolerance)
