"""Generate with transformers, for encoder-decoder models or without vLLM.

Requests run in batches of prompts of similar length. Finished rows leave their batch, and the next batch
starts when the last row has left.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch

from contracts.activations import fuse_activations
from contracts.errors import InputError
from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from contracts.rollout import MaskRule, Sampling
from contracts.vocabulary import end_tokens
from contracts.weights import WeightManifest
from rollout_workers.engines.base import Arrays, Generation, Request
from rollout_workers.engines.beam_search import BeamBatch
from rollout_workers.engines.choice import choose_dtype
from rollout_workers.engines.decoding import begin, check_cache, start_token, try_out
from rollout_workers.engines.sampled_batch import Mask, SampledBatch
from rollout_workers.engines.sampling import with_special_tokens
from rollout_workers.engines.written_text import WrittenText
from rollout_workers.settings import RolloutSettings
from rollout_workers.weights.reloading import as_tensor


class TransformersEngine:
    """`rollout_workers.engines.base.Engine` on a Hugging Face model, causal or encoder-decoder.

    An encoder-decoder's encoder reads the requests' tokens, and its decoder generates after its start token.
    The engine uses only the end tokens of the model's generation settings.

    Args:
        device: on which it computes; None: a GPU, if there is one.
    """

    def __init__(
        self,
        model: str,
        tokenizer: str,
        max_length: int | None,
        settings: RolloutSettings,
        mask_rule: MaskRule | None = None,
        revision: str | None = None,
        device: str | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        if settings.engine_args:
            raise InputError(
                f"rollout.engine_args={settings.engine_args} is for vLLM, but this run generates with "
                "transformers; expected no engine_args"
            )
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, choose_dtype(settings.dtype, on_gpu=device != "cpu"))
        self._lm = _load(model, revision, dtype, device)
        self._mask_lm = None if mask_rule is None else copy.deepcopy(self._lm)
        self._device = self._lm.device  # device of the computation; asleep, the model is on the host
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            tokenizer, revision=revision if tokenizer == model else None, trust_remote_code=False
        )
        self._text = WrittenText(self.tokenizer)
        self._mask_rule = mask_rule and with_special_tokens(mask_rule, self.tokenizer)
        self._end_tokens = end_tokens(self._lm.generation_config.eos_token_id, self.tokenizer.eos_token_id)
        self.window = max_length or getattr(self._lm.config, "max_position_embeddings", None)
        self._max_concurrent = settings.max_concurrent
        self._waiting: list[Request] = []
        self._batch: SampledBatch | BeamBatch | None = None
        self.weight_version = 0
        self.mask_version: int | None = None if mask_rule is None else 0
        self.num_generated = 0

    def add(self, request: Request) -> None:
        """Admit a request.

        Raises:
            InputError: the model or this engine can't serve it.
        """
        _check_sampling(request.sampling, self._mask_rule)
        if self._room(request) < 1:
            raise InputError(
                f"a prompt of {len(request.tokens)} tokens does not fit the model's window of "
                f"{self.window}: set rollout.max_prompt_tokens to cut prompts"
            )
        self._move_to(self._device)
        self._waiting.append(request)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + (self._batch.num_unfinished if self._batch else 0)

    @torch.inference_mode()
    def abort(self, ids: Collection[int]) -> None:
        self._waiting = [request for request in self._waiting if request.id not in ids]
        if isinstance(self._batch, SampledBatch):
            self._batch.drop(ids)
            if not self._batch.num_unfinished:
                self._batch = None

    def abort_all(self) -> None:
        self._waiting.clear()
        self._batch = None

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        if self._batch is None and self._waiting:
            self._batch = self._start(self._next_requests())
        if self._batch is None:
            return []
        self.num_generated += self._batch.num_unfinished
        try:
            return self._batch.step(self.weight_version)
        finally:
            if not self._batch.num_unfinished:
                self._batch = None

    def load_weights(self, manifest: WeightManifest, arrays: Arrays) -> None:
        self._move_to(self._device)
        _copy_into(self._lm, manifest, arrays)
        self.weight_version = manifest.version

    def load_mask(self, manifest: WeightManifest, arrays: Arrays) -> None:
        if self._mask_lm is None:
            raise InputError("weights came for a mask model, but the engine was started without a mask_rule")
        self._move_to(self._device)
        _copy_into(self._mask_lm, manifest, arrays)
        self.mask_version = manifest.mask_version

    @torch.inference_mode()
    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        self._move_to(self._device)
        return [self._logprobs(text) for text in texts]

    def sleep(self) -> None:
        self._move_to(torch.device("cpu"))
        torch.cuda.empty_cache()  # does nothing without CUDA

    def _move_to(self, device: torch.device) -> None:
        for lm in (self._lm, self._mask_lm):
            if lm is not None and lm.device != device:
                lm.to(device)

    def _logprobs(self, text: tuple[int, ...]) -> tuple[float, ...]:
        tokens = torch.tensor([text], device=self._lm.device)
        if self._lm.config.is_encoder_decoder:
            # The text is the prompt and, without its first token, the response.
            start = torch.full_like(tokens[:, :1], start_token(self._lm))
            read = {"input_ids": tokens, "decoder_input_ids": torch.cat([start, tokens[:, 1:-1]], dim=-1)}
        else:
            read = {"input_ids": tokens[:, :-1]}
        logprobs_LV = self._lm(**read, use_cache=False).logits[0].float().log_softmax(-1)
        return tuple(logprobs_LV.gather(-1, tokens[0, 1:, None]).squeeze(-1).tolist())

    def _next_requests(self) -> list[Request]:
        """Choose a batch around the oldest request: requests of the same kind and of similar length."""
        oldest = self._waiting[0]
        size = max(1, self._max_concurrent // oldest.sampling.num_beams)
        alike = [request for request in self._waiting if _kind(request) == _kind(oldest)]
        alike.sort(key=lambda request: len(request.tokens))
        first = alike.index(oldest) // size * size
        chosen = alike[first : first + size]
        taken = {request.id for request in chosen}
        self._waiting = [request for request in self._waiting if request.id not in taken]
        return chosen

    def _start(self, requests: Sequence[Request]) -> SampledBatch | BeamBatch:
        prompts = [request.tokens for request in requests]
        max_tokens = [min(request.sampling.max_tokens, self._room(request)) for request in requests]
        decoding = begin(self._lm, prompts)
        is_encoder_decoder = self._lm.config.is_encoder_decoder
        read = [(start_token(self._lm),)] * len(prompts) if is_encoder_decoder else prompts
        if requests[0].sampling.num_beams > 1:
            return BeamBatch(requests, max_tokens, read, decoding, self._end_tokens, self._text)
        mask = None
        if requests[0].sampling.masked and self._mask_rule is not None:
            mask = Mask(begin(self._mask_lm, prompts), self._mask_rule)
        return SampledBatch(requests, max_tokens, read, decoding, mask, self._end_tokens, self._text)

    def _room(self, request: Request) -> int:
        """Return how many tokens the model can generate for a request."""
        if self.window is None:
            return request.sampling.max_tokens
        if self._lm.config.is_encoder_decoder:  # prompt and response have separate windows
            return self.window if len(request.tokens) <= self.window else 0
        return self.window - len(request.tokens)


def _load(path: str, revision: str | None, dtype: torch.dtype, device: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
    check_cache(config)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with ONE_MODEL_AT_A_TIME:
        lm = kind.from_pretrained(path, revision=revision, dtype=dtype, trust_remote_code=False).eval()
    fuse_activations(lm)
    lm = lm.to(torch.device(device))
    try_out(lm)  # fails now rather than at the first request
    return lm


def _copy_into(lm: Any, manifest: WeightManifest, arrays: Arrays) -> None:
    parameters = dict(lm.named_parameters())
    with torch.no_grad():
        for name, array in arrays.items():
            parameters[name].copy_(as_tensor(array, manifest.dtypes[name]))


def _kind(request: Request) -> tuple[int, bool]:
    """Return the properties that requests of one batch share: number of beams, and masking."""
    return request.sampling.num_beams, request.sampling.masked


def _check_sampling(sampling: Sampling, mask_rule: MaskRule | None) -> None:
    if sampling.masked and mask_rule is None:
        raise InputError(
            "masked sampling was requested, but the engine was started without a mask_rule: "
            "only runs of algorithm=nlpo have a mask"
        )
    if sampling.num_beams == 1:
        return
    if sampling.temperature != 0 or sampling.masked or sampling.stop or sampling.ignore_eos:
        raise InputError(
            f"beam search with {sampling.num_beams} beams needs temperature 0, no mask and no stop strings; "
            f"got temperature {sampling.temperature:g}, masked={sampling.masked}, "
            f"stop={list(sampling.stop)}, ignore_eos={sampling.ignore_eos}"
        )
