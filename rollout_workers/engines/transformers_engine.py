"""Generation with transformers alone: where vLLM is not installed, or does not know the model.

Requests are taken in groups; a group's prompts are padded on the left and share one key-value
cache, finished rows leave it, and the next group starts when the last row has left.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from contracts.rollout import FinishReason
from contracts.weights import Probe, WeightManifest
from rollout_workers.engines.base import Arrays, Generation, Request
from rollout_workers.engines.dtypes import engine_dtype
from rollout_workers.engines.sampling import draw, warp
from rollout_workers.engines.tensors import as_tensor
from rollout_workers.settings import RolloutSettings


@dataclass(slots=True)
class _Row:
    """One request in progress."""

    request: Request
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    num_letters: int = 0  # of the text before the newest token; counted for stop strings only


class TransformersEngine:
    """`rollout_workers.engines.base.Engine` on a Hugging Face causal model."""

    def __init__(self, model: str, tokenizer: str, max_length: int | None, settings: RolloutSettings) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, engine_dtype(settings))
        self._lm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        self._lm.to(self._device).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer)
        self._end_tokens = _end_tokens(self._lm, self._tokenizer)
        self._max_length = max_length or getattr(self._lm.config, "max_position_embeddings", None)
        self._max_concurrent = settings.max_concurrent
        self._waiting: deque[Request] = deque()
        self._rows: list[_Row] = []
        self._cache: Any = None
        self._attended = torch.empty(0)  # (B, length so far): 0 for padding
        self._next_input = torch.empty(0)  # (B, length of the next forward)
        self.weight_version = 0
        self.num_generated = 0

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._rows)

    def abort_all(self) -> None:
        self._waiting.clear()
        self._rows, self._cache = [], None

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        if not self._rows:
            self._start_group()
        if not self._rows:
            return []
        positions = (self._attended.cumsum(-1) - 1).clamp(min=0)[:, -self._next_input.shape[1] :]
        out = self._lm(
            input_ids=self._next_input,
            attention_mask=self._attended,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        chosen_B = [
            self._choose(row, logits_V) for row, logits_V in zip(self._rows, out.logits[:, -1], strict=True)
        ]
        self.num_generated += len(self._rows)
        self._next_input = torch.tensor(chosen_B, device=self._device)[:, None]
        self._attended = torch.cat([self._attended, torch.ones_like(self._next_input)], dim=-1)
        return self._retire()

    def load_weights(self, manifest: WeightManifest, arrays: Arrays) -> None:
        parameters = dict(self._lm.named_parameters())
        with torch.no_grad():
            for name, array in arrays.items():
                parameters[name].copy_(as_tensor(array, manifest.dtypes[name]))
        self.weight_version = manifest.version

    @torch.inference_mode()
    def score(self, probe: Probe) -> tuple[float, ...]:
        tokens = torch.tensor(probe.tokens, device=self._device)
        logits_LV = self._lm(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
        logprobs = logits_LV.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
        return tuple(logprobs.tolist())

    def _start_group(self) -> None:
        size = min(len(self._waiting), self._max_concurrent)
        requests = [self._waiting.popleft() for _ in range(size)]
        if not requests:
            return
        self._rows = [_Row(r, torch.Generator(self._device).manual_seed(r.seed % 2**63)) for r in requests]
        width = max(len(r.tokens) for r in requests)
        pad = self._tokenizer.pad_token_id or 0

        def left(fill: int, rows: list[list[int]]) -> Tensor:
            return torch.tensor([[fill] * (width - len(row)) + row for row in rows], device=self._device)

        self._next_input = left(pad, [list(r.tokens) for r in requests])
        self._attended = left(0, [[1] * len(r.tokens) for r in requests])
        self._cache = None

    def _choose(self, row: _Row, logits_V: Tensor) -> int:
        forbidden = self._end_tokens if len(row.tokens) < row.request.sampling.min_tokens else ()
        logprobs_V = warp(logits_V.float(), row.request.sampling, forbidden)
        token = draw(logprobs_V, row.request.sampling, row.generator)
        row.tokens.append(token)
        row.logprobs.append(float(logprobs_V[token]))
        row.versions.append(self.weight_version)
        return token

    def _retire(self) -> list[Generation]:
        """Take finished rows out of the group and of its cache."""
        results = [self._result(row) for row in self._rows]
        kept = [index for index, result in enumerate(results) if result is None]
        if len(kept) < len(self._rows):
            self._rows = [self._rows[index] for index in kept]
            rows = torch.tensor(kept, device=self._device, dtype=torch.long)
            self._next_input, self._attended = self._next_input[rows], self._attended[rows]
            if kept:
                self._cache.batch_select_indices(rows)
            else:
                self._cache = None
        return [result for result in results if result is not None]

    def _result(self, row: _Row) -> Generation | None:
        sampling = row.request.sampling
        text = self._text(row) if sampling.stop else ""
        cut = _stop_string(row, text)
        length = len(row.request.tokens) + len(row.tokens)
        if row.tokens[-1] in self._end_tokens or cut is not None:
            reason = FinishReason.STOP
        elif len(row.tokens) >= sampling.max_tokens or length == self._max_length:
            reason = FinishReason.LENGTH
        else:
            return None
        return Generation(
            request_id=row.request.id,
            tokens=tuple(row.tokens),
            text=self._text(row) if cut is None else text[:cut],
            logprobs=tuple(row.logprobs),
            versions=tuple(row.versions),
            finish_reason=reason,
        )

    def _text(self, row: _Row) -> str:
        return str(self._tokenizer.decode(row.tokens, skip_special_tokens=True))


def _stop_string(row: _Row, text: str) -> int | None:
    """Where a stop string begins that the newest token completed; as in vLLM, those that were complete
    within the first `min_tokens` tokens don't count.
    """
    before, row.num_letters = row.num_letters, len(text)
    if len(row.tokens) <= row.request.sampling.min_tokens:
        return None
    stops = row.request.sampling.stop
    begins = [(text.find(stop, max(0, before + 1 - len(stop))), len(stop)) for stop in stops]
    found = [(begin + length, begin) for begin, length in begins if begin >= 0]
    return min(found)[1] if found else None


def _end_tokens(lm: Any, tokenizer: Any) -> tuple[int, ...]:
    configured = lm.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return tuple({token for token in (*listed, tokenizer.eos_token_id) if token is not None})
