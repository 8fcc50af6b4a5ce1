"""Stage `reference`: compute each response's log-probabilities once, under a frozen reference model.

The scored tokens are saved, too, so training needs no reference in memory. If training starts from the
reference model's weights, its first ratios are 1.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import torch
from torch import Tensor

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.batches.batching import collate
from learner.batches.splitting import micro_batches
from learner.distributed.device import pick_device
from learner.models.actor_critic import make_policy
from learner.models.language_models import load_language_model
from learner.models.policy import check_head
from learner.settings import LearnerSettings, ModelSettings
from services.data.annotated.parts import Parts
from services.data.tasks.responses import ResponseRow
from services.data.tokens.response_tokens import ResponseTokens, Tokens

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("prompt_tokens", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int32())),
        ("ref_logprobs", pa.list_(pa.float32())),
        ("cut", pa.bool_()),
    ]
)


class Reference:
    """Frozen language model that computes log-probabilities of responses and hidden states of prompts.

    It computes like the learner: with float32 weights, no dropout, and autocast by `learner.autocast`.
    """

    def __init__(self, path: str, settings: LearnerSettings) -> None:
        if settings.num_threads:
            torch.set_num_threads(settings.num_threads)
        model = ModelSettings(path=path)
        self._settings, self.device = settings, pick_device(settings)
        self._policy = make_policy(model, load_language_model(model), settings.logits_budget)
        self._policy.to(self.device).eval().requires_grad_(False)
        check_head(self._policy)
        self._encodes = bool(self._policy.lm.config.is_encoder_decoder)
        enabled = settings.autocast == "bfloat16" or (
            settings.autocast == "auto" and self.device.type == "cuda"
        )
        self._autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    @torch.no_grad()
    def logprobs(self, texts: Sequence[Tokens]) -> list[list[float]]:
        """Return the log-probability of each response's tokens, in batches within `learner.token_budget`."""
        filled = [place for place, text in enumerate(texts) if text.response]
        logprobs: list[list[float]] = [[] for _ in texts]
        if not filled:
            return logprobs
        batch = collate([as_rollout(place, texts[place]) for place in filled], self.device)
        logprobs_BT = torch.zeros(batch.mask_BT.shape, device=self.device)
        rows_B = torch.arange(batch.num_rollouts)
        with self._autocast:
            for micro in micro_batches(batch, rows_B, self._settings.token_budget):
                micro.place(logprobs_BT, self._policy(micro).float())
        for place, values in zip(filled, logprobs_BT.cpu().tolist(), strict=True):
            logprobs[place] = values[: len(texts[place].response)]
        return logprobs

    @torch.no_grad()
    def states(self, prompts: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, Tensor]]:
        """Yield (place, the last layer's hidden states (L, H)) of every prompt, the longest first."""
        order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place]))
        at = 0
        while at < len(order):
            size = max(1, self._settings.token_budget // len(prompts[order[at]]))
            places = order[at : at + size]
            hidden_BLH = self._hidden([prompts[place] for place in places])
            for place, states_LH in zip(places, hidden_BLH, strict=True):
                yield place, states_LH[: len(prompts[place])].clone()
            at += size

    def _hidden(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return hidden states (B, L, H), padded on the right, where a causal model can't see the padding."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        tokens_BL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        lengths_B1 = torch.tensor([[len(prompt)] for prompt in prompts], device=self.device)
        with self._autocast:
            if self._encodes:
                mask_BL = torch.arange(tokens_BL.shape[1], device=self.device) < lengths_B1
                encoder = self._policy.lm.get_encoder()
                states: Tensor = encoder(input_ids=tokens_BL, attention_mask=mask_BL.long()).last_hidden_state
            else:
                states = self._policy.trunk(input_ids=tokens_BL, use_cache=False).last_hidden_state
        return states


def score_missing(
    rows: Sequence[ResponseRow],
    to_tokens: ResponseTokens,
    reference: Reference,
    parts: Parts,
    advance: Callable[[int], None],
) -> None:
    """Compute the missing parts; call `advance` with each part's number of rows."""
    for start in parts.missing():
        numbers = parts.rows(start)
        texts = [to_tokens(rows[row].prompt, rows[row].response) for row in numbers]
        parts.write(start, as_table(numbers, texts, reference.logprobs(texts)))
        advance(len(numbers))


def as_table(
    numbers: Sequence[int], texts: Sequence[Tokens], logprobs: Sequence[Sequence[float]]
) -> pa.Table:
    columns = {
        "row": list(numbers),
        "prompt_tokens": [list(text.prompt) for text in texts],
        "tokens": [list(text.response) for text in texts],
        "ref_logprobs": [list(values) for values in logprobs],
        "cut": [text.cut for text in texts],
    }
    return pa.table(columns, schema=SCHEMA)


def as_rollout(place: int, text: Tokens) -> Rollout:
    """Return a response as a rollout, so that its tokens can be scored."""
    nothing = (0.0,) * len(text.response)
    turn = Turn(text.prompt, text.response, "", nothing, (0,) * len(text.response))
    return Rollout(place, place, Prompt("", ""), (turn,), FinishReason.STOP)
