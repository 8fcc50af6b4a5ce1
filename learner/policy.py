"""A language model of transformers seen as a policy over its next token: causal, or encoder-decoder.

Logits are made only for the tokens that the model itself chose: never for the prompt, never for
padding, and in chunks where the vocabulary is large.
"""

from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import InputError, LearnerError
from contracts.vocabulary import decoder_start
from learner.batching import MicroBatch
from learner.functional.distribution_kl import distribution_kl
from learner.functional.logprobs import WHOLE, Restriction, token_logprobs


class Policy(nn.Module):
    """A language model, its hidden states where it acted, and its head. Subclasses know the family."""

    def __init__(self, lm: nn.Module, logits_budget: int) -> None:
        super().__init__()
        self.lm = lm
        self.logits_budget = logits_budget
        self.vocab_size: int = lm.get_output_embeddings().weight.shape[0]

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        """Hidden states (N, H) in which each of the model's tokens was chosen, by `trunk` or the own one."""
        raise NotImplementedError

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        """What the model reads in front of tokens 1 … of a probe text."""
        raise NotImplementedError

    def probe_states(self, tokens_L: Tensor) -> Tensor:
        """Hidden states (L - 1, H) in which tokens 1 … of a probe text would be chosen."""
        states: Tensor = self.trunk(**self.probe_inputs(tokens_L)).last_hidden_state[0]
        return states

    @property
    def trunk(self) -> nn.Module:
        """All of the model but its head."""
        found: nn.Module = self.lm.base_model
        return found

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """The model's own head, with the scalings that some architectures put around it."""
        config = self.lm.config
        logits_NV = self.lm.get_output_embeddings()(hidden_NH * self.head_scale)
        if (bias := getattr(self.lm, "final_logits_bias", None)) is not None:  # BART's
            logits_NV = logits_NV + bias
        if factor := getattr(config, "logit_scale", None):  # times 1 would be one more copy of all logits
            logits_NV = logits_NV * factor
        if divisor := getattr(config, "logits_scaling", None):
            logits_NV = logits_NV / divisor
        softcap = getattr(config, "final_logit_softcapping", None)
        return softcap * torch.tanh(logits_NV / softcap) if softcap else logits_NV

    @property
    def head_scale(self) -> float:
        return 1.0

    def evaluate(
        self, hidden_NH: Tensor, micro: MicroBatch, with_entropy: bool, restriction: Restriction = WHOLE
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (N,) of the model's tokens, and entropies (N,) if wanted."""
        return token_logprobs(
            hidden_NH,
            micro.targets_N,
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
        """KL(self‖other) a token, over the vocabulary; `forward`: KL(other‖self)."""
        return distribution_kl(
            hidden_NH,
            self.logits,
            other_hidden_NH,
            other.logits,
            vocab_size=self.vocab_size,
            logits_budget=self.logits_budget,
            forward=forward,
            restriction=restriction,
        )

    def forward(self, micro: MicroBatch, restriction: Restriction = WHOLE) -> Tensor:
        """Log-probabilities (N,) of the model's tokens."""
        return self.evaluate(self.states(micro), micro, with_entropy=False, restriction=restriction)[0]


class CausalPolicy(Policy):
    """GPT, Llama and their kind: prompt and response are one sequence."""

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        hidden_BLH = (trunk or self.trunk)(input_ids=micro.tokens_SL, use_cache=False).last_hidden_state
        return hidden_BLH[:, :-1][micro.loss_mask_SL[:, 1:]]

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        return {"input_ids": tokens_L[None, :-1], "use_cache": False}


class Seq2SeqPolicy(Policy):
    """T5, BART and their kind: the encoder reads the prompt, the decoder writes the response.

    Prompts are padded on the right behind an attention mask, and so are responses, which need none:
    positions count from 0 on both sides, as they do when the model writes.
    """

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        source_BS, seen_BS, response_BT, written_BT = split_turns(micro)
        start_B1 = response_BT.new_full((len(response_BT), 1), self._start_token)
        hidden_BTH = (trunk or self.trunk)(
            input_ids=source_BS,
            attention_mask=seen_BS.long(),
            decoder_input_ids=torch.cat([start_B1, response_BT[:, :-1]], dim=-1),
            use_cache=False,
        ).last_hidden_state
        return hidden_BTH[written_BT]

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        """The probe is the source, and its tokens after the first are the response to it."""
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
        """T5 shrinks its states in front of a head that is tied to the embedding."""
        config = self.lm.config
        tied = config.model_type in ("umt5", "longt5", "switch_transformers") and config.tie_word_embeddings
        return float(config.d_model**-0.5) if getattr(config, "scale_decoder_outputs", tied) else 1.0

    @property
    def _start_token(self) -> int:
        """What the decoder reads before it writes its first token."""
        return decoder_start(
            getattr(self.lm.config, "decoder_start_token_id", None),
            self.lm.generation_config.decoder_start_token_id,
        )


class Stacks(nn.Module):
    """The trunk of T5 and its kin, whose classes hold encoder, decoder and head side by side."""

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


def split_turns(micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(source, which of it is real, response, which of it is real): one turn cut where the response begins.

    Raises:
        LearnerError: a sequence has several turns, which an encoder-decoder can't read.
    """
    mask_BL = micro.loss_mask_SL
    if (mask_BL[:, 1:].int() - mask_BL[:, :-1].int() == 1).sum(-1).max() > 1:
        raise LearnerError(
            "a sequence has several turns; an encoder-decoder reads one prompt and writes one response: "
            "turns that begin afresh are expected, as with environment.memory=0"
        )
    num_source_B, num_response_B = mask_BL.int().argmax(-1), mask_BL.sum(-1)
    seen_BS = _first(num_source_B)
    written_BT = _first(num_response_B)
    response_BT = torch.zeros_like(written_BT, dtype=torch.long)
    response_BT = response_BT.masked_scatter(written_BT, micro.tokens_SL[mask_BL])
    source_BS = micro.tokens_SL[:, : seen_BS.shape[1]] * seen_BS
    return source_BS, seen_BS, response_BT, written_BT


def _first(lengths_B: Tensor) -> Tensor:
    """Boolean (B, longest): true for the first `lengths_B` entries of each row."""
    return torch.arange(int(lengths_B.max()), device=lengths_B.device) < lengths_B[:, None]


def family(lm: Any) -> type[Policy]:
    """The policy class that fits a model of transformers."""
    return Seq2SeqPolicy if lm.config.is_encoder_decoder else CausalPolicy


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Refuse an architecture whose logits are more than its head on its last hidden state."""
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
