"""Use a transformers language model as a policy over its next token: causal or encoder-decoder.

Logits are computed only for generated tokens, never for the prompt or padding, and in chunks if the
vocabulary is large.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from contracts.vocabulary import decoder_start
from learner.batches.batching import MicroBatch
from learner.functional.distribution_kl import Measure, distribution_divergence, distribution_kl
from learner.functional.linear_logprobs import LinearHead, linear_logprobs
from learner.functional.logprobs import WHOLE, Head, Restriction, token_logprobs
from learner.models.packing import can_pack, nothing_packed, packed_row, packed_states
from learner.models.shared_prompts import shared_prompts, shared_states
from learner.models.split_turns import split_turns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learner.distributed.stored_weights import StoredWeights


class Policy(nn.Module):
    """Base of policies: a language model, its hidden states before each generated token, and its head."""

    lm: "PreTrainedModel"
    stored: "StoredWeights | None" = None  # where to read the weights; None: they are loaded
    shares_prompts = False  # whether `states` may read a prompt once for all its responses
    packs_rows = False  # whether `states` may read all sequences in one row, if the device can

    def __init__(self, lm: "PreTrainedModel", logits_budget: int) -> None:
        super().__init__()
        self.lm = lm
        self.logits_budget = logits_budget
        self.vocab_size: int = lm.get_output_embeddings().weight.shape[0]

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        """Return the hidden state (N, H) before each generated token, by `trunk` or the policy's trunk."""
        raise NotImplementedError

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        """Return the model's inputs to predict tokens 1 … of a probe text."""
        raise NotImplementedError

    def probe_states(self, tokens_L: Tensor) -> Tensor:
        """Return the hidden states (L - 1, H) before tokens 1 … of a probe text."""
        states: Tensor = self.trunk(**self.probe_inputs(tokens_L)).last_hidden_state[0]
        return states

    @property
    def trunk(self) -> nn.Module:
        """Return the model without its head."""
        trunk: nn.Module = self.lm.base_model
        return trunk

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return logits (N, V) of the model's head, with the scalings that some architectures add."""
        config = self.lm.config
        logits_NV = self.lm.get_output_embeddings()(hidden_NH * self.head_scale)
        if (bias := getattr(self.lm, "final_logits_bias", None)) is not None:  # in BART
            logits_NV = logits_NV + bias
        if factor := getattr(config, "logit_scale", None):  # a product with 1 would copy all logits
            logits_NV = logits_NV * factor
        if divisor := getattr(config, "logits_scaling", None):
            logits_NV = logits_NV / divisor
        softcap = getattr(config, "final_logit_softcapping", None)
        return softcap * torch.tanh(logits_NV / softcap) if softcap else logits_NV

    @property
    def head_scale(self) -> float:
        return 1.0

    def linear_head(self) -> LinearHead | None:
        """Return the head as weight, bias and scale; None if `logits` is more than a linear map.

        Capped logits, adapted or quantised heads, and a subclass's `logits` are more.
        """
        config, head = self.lm.config, self.lm.get_output_embeddings()
        capped = getattr(config, "final_logit_softcapping", None)
        if type(self).logits is not Policy.logits or type(head) is not nn.Linear or capped:
            return None
        factor = getattr(config, "logit_scale", None) or 1.0
        factor /= getattr(config, "logits_scaling", None) or 1.0
        biases = (head.bias, getattr(self.lm, "final_logits_bias", None))
        flat = [bias.flatten() for bias in biases if bias is not None]
        bias_V = torch.stack(flat).sum(0) * factor if flat else None
        return LinearHead(head.weight, bias_V, self.head_scale * factor)

    def evaluate(
        self, hidden_NH: Tensor, micro: MicroBatch, with_entropy: bool, restriction: Restriction = WHOLE
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probabilities (N,) of generated tokens and their entropies (N,) or None."""
        return self.logprobs_of(hidden_NH, micro.targets_N, with_entropy, restriction)

    def logprobs_of(
        self,
        hidden_NH: Tensor,
        targets_N: Tensor,
        with_entropy: bool = False,
        restriction: Restriction = WHOLE,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probabilities (N,) of any tokens after these states, and entropies (N,) or None."""
        if (head := self.linear_head()) is not None:
            return linear_logprobs(
                hidden_NH,
                targets_N,
                head,
                logits_budget=self.logits_budget,
                with_entropy=with_entropy,
                restriction=restriction,
            )
        return token_logprobs(
            hidden_NH,
            targets_N,
            self.logits,
            vocab_size=self.vocab_size,
            logits_budget=self.logits_budget,
            with_entropy=with_entropy,
            restriction=restriction,
        )

    def kl_to(
        self,
        other: "Policy",
        hidden_NH: Tensor,
        other_hidden_NH: Tensor,
        restriction: Restriction = WHOLE,
        forward: bool = False,
    ) -> Tensor:
        """Return KL(self‖other) of each token, (N,), over the vocabulary; `forward`: KL(other‖self).

        Heads of one vocabulary may be padded to different sizes; only rows in both count.
        """
        shared = min(self.vocab_size, other.vocab_size)
        return distribution_kl(
            hidden_NH,
            self._first_logits(shared),
            other_hidden_NH,
            other._first_logits(shared),
            vocab_size=self.vocab_size,
            logits_budget=self.logits_budget,
            forward=forward,
            restriction=restriction,
        )

    def divergence_to(
        self, teacher: "Policy", hidden_NH: Tensor, teacher_hidden_NH: Tensor, measure: Measure
    ) -> Tensor:
        """Return a measure of the two distributions of each token, (N,), with a gradient only to this policy.

        The teacher may be this policy itself.
        """
        shared = min(self.vocab_size, teacher.vocab_size)
        logits = torch.no_grad()(teacher._first_logits(shared))
        return distribution_divergence(
            *(hidden_NH, self._first_logits(shared), teacher_hidden_NH, logits),
            measure=measure,
            vocab_size=self.vocab_size,
            logits_budget=self.logits_budget,
        )

    def _first_logits(self, count: int) -> Head:
        """Return the head, or only its first `count` logits."""
        if count == self.vocab_size:
            return self.logits
        return lambda hidden_NH: self.logits(hidden_NH)[:, :count]

    def forward(self, micro: MicroBatch, restriction: Restriction = WHOLE) -> Tensor:
        """Return log-probabilities (N,) of the generated tokens."""
        return self.evaluate(self.states(micro), micro, with_entropy=False, restriction=restriction)[0]


class CausalPolicy(Policy):
    """Policy of GPT, Llama and similar models: prompt and response are one sequence."""

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        trunk = trunk or self.trunk
        with nothing_packed():
            if self.shares_prompts and (shared := shared_prompts(micro)) is not None:
                return shared_states(trunk, shared)
            if self.packs_rows and can_pack(self.lm, micro.tokens_SL.device):
                return packed_states(trunk, packed_row(micro))
            hidden_SLH = trunk(input_ids=micro.tokens_SL, use_cache=False).last_hidden_state
        return micro.predicting(hidden_SLH)

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        return {"input_ids": tokens_L[None, :-1], "use_cache": False}


class Seq2SeqPolicy(Policy):
    """Policy of T5, BART and similar models: the encoder reads the prompt, the decoder writes the response.

    Prompts and responses are padded on the right; only prompts need an attention mask. Positions count from 0
    on both sides, as in generation.
    """

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        turns = split_turns(micro)
        start_B1 = turns.response_BT.new_full((micro.num_sequences, 1), self._start_token)
        hidden_BTH = (trunk or self.trunk)(
            input_ids=turns.source_BS,
            attention_mask=turns.seen_BS,
            decoder_input_ids=torch.cat([start_B1, turns.response_BT[:, :-1]], dim=-1),
            use_cache=False,
        ).last_hidden_state
        return hidden_BTH.flatten(0, 1).index_select(0, turns.places_N)

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        """Use the probe as the source, and its tokens after the first as the response."""
        start = tokens_L.new_tensor([self._start_token])
        return {
            "input_ids": tokens_L[None],
            "decoder_input_ids": torch.cat([start, tokens_L[1:-1]])[None],
            "use_cache": False,
        }

    @property
    def trunk(self) -> nn.Module:
        base: nn.Module = self.lm.base_model
        return Stacks(self.lm) if base is self.lm else base

    @property
    def head_scale(self) -> float:
        """Return T5's factor on its last states, which it applies if its head is tied to the embedding."""
        config = self.lm.config
        tied = config.model_type in ("umt5", "longt5", "switch_transformers") and config.tie_word_embeddings
        return float(config.d_model**-0.5) if getattr(config, "scale_decoder_outputs", tied) else 1.0

    @property
    def _start_token(self) -> int:
        """Return the token that the decoder reads first."""
        return decoder_start(
            getattr(self.lm.config, "decoder_start_token_id", None),
            self.lm.generation_config.decoder_start_token_id,
        )


class Stacks(nn.Module):
    """Trunk of T5 and similar models, whose classes hold encoder, decoder and head side by side."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = lm.get_encoder(), lm.get_decoder()

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        source_BSH = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=source_BSH,
            encoder_attention_mask=attention_mask,
            **options,
        )


def family(lm: Any) -> type[Policy]:
    """Return the policy class for a transformers model."""
    return Seq2SeqPolicy if lm.config.is_encoder_decoder else CausalPolicy


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Refuse an architecture whose logits are not its head applied to its last hidden state."""
    device = next(policy.parameters()).device
    tokens = torch.arange(4, device=device) % policy.vocab_size
    got = policy.logits(policy.probe_states(tokens))
    expected = policy.lm(**policy.probe_inputs(tokens)).logits[0]
    if not torch.allclose(got, expected, atol=1e-3, rtol=1e-3):
        raise InputError(
            f"model type {policy.lm.config.model_type}: its logits differ by "
            f"{float((got - expected).abs().max()):.3g} from its output embedding on its last hidden state; "
            "such a head is not supported"
        )
