"""Read a prompt once for all of its responses, if the model's attention allows it.

    prompts (U, P) ──▶ trunk ──▶ keys and values of each layer (U, P) ──▶ a view of them a sequence (S, P)
    a prompt's last token and its response (S, R) ──▶ trunk, after those ──▶ hidden states (S, R, H)

A causal model reads a prompt without its response, so all responses of a group find the same keys and values.
Gradients of all responses flow back through the single reading. They are sums, as with a reading for each.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.batches.micro_batch import MicroBatch, Rows, upload

# Architectures whose attention depends only on its mask and its tokens' positions.
KINDS = frozenset(
    "gemma gpt2 gpt_neox granite llama mistral olmo olmo2 phi phi3 qwen2 qwen3 smollm3 stablelm".split()  # noqa: SIM905
)
ROPES = ("default", "linear", "yarn", "llama3")  # frequencies that don't depend on a pass's longest sequence
# The rounding of a product with one row depends on the weights' place in memory, and a policy must agree with
# its copy bit for bit.
FEWEST_PROMPT_TOKENS = 2
PADDING = -1  # no token, so that a shorter prompt differs from its continuations
# Largest share of tokens left to read: `benchmarks.shared_prompts` shows the cost of two passes.
MOST_LEFT = 0.6


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Sequences cut before their prompts' last tokens: _U different prompts, _S sequences, _R own tokens.

    Example: of the prompt (12, 14, 9), the responses (15, 2) and (16, 2).

        prompts_UP [[12, 14]]   prompt_S [0, 0]   lengths_S [2, 2]
        own_SR [[9, 15], [9, 16]] (the last token of a response predicts nothing)   places_N [0, 1, 2, 3]
    """

    prompts_UP: Tensor
    prompt_S: Tensor  # the prompt of each sequence
    lengths_S: Tensor  # tokens of its prompt, without the last one
    own_SR: Tensor
    positions_SR: Tensor  # places in its sequence; padding stays within the model's window
    places_N: Tensor  # flat places in (S, R) whose next token is generated

    @property
    def attends_SRK(self) -> Tensor:
        """Return which tokens of its prompt and then of its sequence each token sees: (S, R, P + R)."""
        num_own, device = self.own_SR.shape[1], self.own_SR.device
        prompt_SP = torch.arange(self.prompts_UP.shape[1], device=device) < self.lengths_S[:, None]
        own_RR = torch.ones(num_own, num_own, dtype=torch.bool, device=device).tril()
        shape = (*self.own_SR.shape, -1)
        return torch.cat([prompt_SP[:, None].expand(shape), own_RR.expand(shape)], dim=-1)


def shared_prompts(micro: MicroBatch) -> SharedPrompts | None:
    """Return a micro-batch with each prompt once; None if that would save too little."""
    return micro.on_host.laid_out(_cut_before_responses)


def _cut_before_responses(rows: Rows) -> SharedPrompts | None:
    tokens_SL, mask_SL = rows.tokens_SL, rows.mask_SL
    num_sequences, width = tokens_SL.shape
    columns_L = np.arange(width)
    lengths_S = mask_SL.argmax(-1) - 1
    if not (prompt_width := int(lengths_S.max())):
        return None
    inside_SP = columns_L[:prompt_width] < lengths_S[:, None]
    prompts_SP = np.where(inside_SP, tokens_SL[:, :prompt_width], PADDING)
    prompts_UP, prompt_S = np.unique(prompts_SP, axis=0, return_inverse=True)
    last_S = width - 1 - mask_SL[:, ::-1].argmax(-1)  # the last generated token, which needs no reading
    own_width = int((last_S - lengths_S).max())
    if len(prompts_UP) == num_sequences or prompts_UP.size < FEWEST_PROMPT_TOKENS:
        return None
    if prompts_UP.size + num_sequences * own_width > MOST_LEFT * tokens_SL.size:
        return None
    columns_SR = lengths_S[:, None] + columns_L[:own_width]
    index_SR = columns_SR.clip(max=width - 2)
    predicts_SR = np.take_along_axis(mask_SL, index_SR + 1, 1) & (columns_SR < last_S[:, None])
    arrays = {
        "prompts_UP": prompts_UP.clip(min=0),
        "prompt_S": prompt_S.reshape(-1),
        "lengths_S": lengths_S,
        "own_SR": np.take_along_axis(tokens_SL, index_SR, 1),
        "positions_SR": index_SR,
        "places_N": np.flatnonzero(predicts_SR),
    }
    return SharedPrompts(**upload(arrays, rows.device))


def shared_states(trunk: nn.Module, shared: SharedPrompts) -> Tensor:
    """Return the hidden state (N, H) before each generated token, in the order of the micro-batch."""
    cache = trunk(input_ids=shared.prompts_UP, use_cache=True).past_key_values
    cache.batch_select_indices(shared.prompt_S)
    hidden_SRH: Tensor = trunk(
        input_ids=shared.own_SR,
        past_key_values=cache,
        attention_mask=shared.attends_SRK[:, None],
        position_ids=shared.positions_SR,
        use_cache=True,
    ).last_hidden_state
    return hidden_SRH.flatten(0, 1).index_select(0, shared.places_N)


def can_share(lm: Any) -> bool:
    """Return whether a model's keys and values depend only on the tokens before them, and can be kept.

    Sliding windows, recurrent layers, recomputed activations and frequencies by length prevent it.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    config = lm.config
    plain = config.model_type in KINDS and config._attn_implementation == "sdpa"
    if not plain or lm.is_gradient_checkpointing:
        return False
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") not in ROPES:
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
