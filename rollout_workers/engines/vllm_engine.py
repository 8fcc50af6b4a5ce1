"""Step vLLM's engine: admission, shipping and new weights happen between two steps.

The engine lives in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0). So it starts in half the time of a
separate process, and its model can be reached to load weights. If it is split over several GPUs, vLLM starts
and ends a process for each part.
"""

import gc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from contracts.activations import fuse_activations
from contracts.errors import InputError, RunError
from contracts.processes.working_folder import off_the_path_of_children
from contracts.rollout import FinishReason, MaskRule, Sampling
from contracts.weights import WeightGroup, WeightManifest
from rollout_workers.engines.base import Arrays, Generation, Request
from rollout_workers.engines.choice import choose_dtype, stepping, users_runner
from rollout_workers.engines.drawn_tokens import Drawn, one_each, step
from rollout_workers.engines.engine_arguments import engine_arguments, gpu_arguments, prepare_environment
from rollout_workers.engines.inverse_draw import install_draw
from rollout_workers.engines.mask_processor import MASKED
from rollout_workers.engines.masked_twin import install_mask, twin_arguments
from rollout_workers.engines.sampling import with_special_tokens
from rollout_workers.engines.written_text import WrittenText
from rollout_workers.settings import RolloutSettings
from rollout_workers.weights.direct_loading import DirectLoader
from rollout_workers.weights.reloading import as_tensor, reload_in_ranks, reload_model
from rollout_workers.weights.served_adapter import adapter_arguments, replace_adapters
from rollout_workers.weights.weight_transfer import WeightReceiver

SCORED = "scored-"  # prefix of the ids of requests that are scored, not generated
REHEARSED = 24  # tokens, as in a probe


@dataclass(slots=True)
class _Active:
    """Request in progress: vLLM's key, and the first token of each weight version."""

    key: str
    spans: list[tuple[int, int]]
    drawn: Drawn | None  # its tokens so far; None: vLLM searches them for stop strings


class VLLMEngine:
    """`rollout_workers.engines.base.Engine` on vLLM's LLMEngine; with a mask rule, on a twin.

    With `lora_rank`, new versions are adapters of at most that rank beside the model's weights: one, or one
    for each of `roles`.

    `cache_bytes` limits keys and values on each GPU; without it vLLM measures the free memory.
    """

    def __init__(
        self,
        model: str,
        tokenizer: str,
        max_length: int | None,
        settings: RolloutSettings,
        mask_rule: MaskRule | None = None,
        revision: str | None = None,
        lora_rank: int | None = None,
        roles: tuple[str, ...] = (),
        cache_bytes: int | None = None,
    ) -> None:
        is_split, on_gpu = settings.tensor_parallel_size > 1, torch.cuda.is_available()
        masks, adapts = mask_rule is not None, bool(lora_rank)
        steps = stepping(
            settings, on_gpu=on_gpu, has_mask=masks, serves_adapter=adapts, runner=users_runner()
        )
        prepare_environment(is_split=is_split, on_gpu=on_gpu, is_newer=steps.is_newer)
        chosen = chosen_arguments(model, tokenizer, max_length, settings, mask_rule, revision)
        if lora_rank:
            chosen |= adapter_arguments(lora_rank, max(1, len(roles)))
        chosen["async_scheduling"] = steps.runs_ahead
        if on_gpu:
            chosen["kv_cache_memory_bytes"] = cache_bytes
        self._engine = _start(engine_arguments(chosen, settings.engine_args))
        self._is_parallel = is_split
        if not self._is_parallel:  # otherwise the model is in other processes
            runner = self._engine.model_executor.driver_worker.worker.model_runner
            if mask_rule:
                install_mask(runner, with_special_tokens(mask_rule, self._engine.get_tokenizer()))
            self._model: torch.nn.Module = runner.get_model()
            if not on_gpu:
                install_draw(runner)
                fuse_activations(self._model, vllm_activations())
        self.tokenizer = self._engine.get_tokenizer()
        self._text = WrittenText(self.tokenizer)
        self.window: int | None = self._engine.vllm_config.model_config.max_model_len
        self._loaders: dict[str, DirectLoader] = {}  # by half of a twin
        self._receiver = WeightReceiver(
            self._engine.model_executor,
            None if self._is_parallel else partial(self._load_half, "policy"),
            "policy" if mask_rule else "",
        )
        self.roles = roles
        self._adapters: dict[str, Any] = {}  # vLLM's handles of the last loaded adapters, by role
        self._active: dict[str, _Active] = {}
        self._drawn: dict[str, Drawn] = {}  # by vLLM's key, which differs from a request's id
        self._stashed: list[Generation] = []
        self._num_loads = 0
        self.weight_version = 0
        self.mask_version: int | None = None if mask_rule is None else 0
        self.num_generated = 0
        self._rehearse()

    def _rehearse(self) -> None:
        """Score a text like a probe: vLLM compiles a function at the first, which would delay a push."""
        self.logprobs([(0,) * min(REHEARSED, (self.window or REHEARSED + 1) - 1)])

    def add(self, request: Request) -> None:
        """Admit a request.

        Raises:
            InputError: this engine can't draw tokens as requested.
        """
        _check_sampling(request.sampling, has_mask=self.mask_version is not None)
        self._wake()
        # The salt prevents the use of prefixes that either model computed with old weights. A version comes
        # twice, with other weights, if a run went back to a checkpoint.
        prompt = {"prompt_token_ids": list(request.tokens), "cache_salt": f"load {self._num_loads}"}
        key = str(request.id)
        parameters = sampling_parameters(request.sampling, request.seed)
        adapter = self._adapters.get(request.role if self.roles else "")
        vllms_key = self._engine.add_request(key, prompt, parameters, lora_request=adapter)
        drawn = None if request.sampling.stop else Drawn()
        self._active[key] = _Active(vllms_key, [(0, self.weight_version)], drawn)
        if drawn is not None:
            self._drawn[vllms_key] = drawn

    def step(self) -> list[Generation]:
        stashed, self._stashed = self._stashed, []
        finished = [self._generation(output) for output in self._outputs() if output.finished]
        self.num_generated += self.num_unfinished + len(finished)
        return stashed + finished

    @property
    def num_unfinished(self) -> int:
        return int(self._engine.get_num_unfinished_requests()) + len(self._stashed)

    def abort(self, ids: Collection[int]) -> None:
        active = [str(number) for number in ids if self._forget(str(number)) is not None]
        self._engine.abort_request(active, internal=False)

    def abort_all(self) -> None:
        self._engine.abort_request(list(self._active), internal=False)
        self._active.clear()
        self._drawn.clear()
        self._stashed.clear()

    def load_weights(self, manifest: WeightManifest, arrays: Arrays) -> None:
        self._wake()
        self._drain()
        if manifest.adapter is not None or manifest.roles is not None:
            self._adapters = replace_adapters(self._engine, manifest, arrays)
        else:
            self._reload("policy", manifest, arrays)
        self._note_version(manifest)

    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        return self._receiver.join(group, first_rank)

    def receive_weights(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        self._wake("weights")
        self._drain()
        broken = self._receiver.receive(manifest, handles)
        if broken is None:
            self._note_version(manifest)
        return broken

    def load_mask(self, manifest: WeightManifest, arrays: Arrays) -> None:
        if self.mask_version is None:
            raise InputError("weights came for a mask model, but the engine was started without a mask_rule")
        self._wake()
        self._reload("mask", manifest, arrays)
        self.mask_version = manifest.mask_version
        self._num_loads += 1

    def logprobs(self, texts: Sequence[tuple[int, ...]], role: str = "") -> list[tuple[float, ...]]:
        """Return the log-probabilities; if roles have adapters, by this role's adapter, or without any."""
        from vllm import SamplingParams

        self._wake()
        parameters = SamplingParams(
            max_tokens=1, prompt_logprobs=0, flat_logprobs=True, temperature=0.0, detokenize=False
        )
        waiting = {f"{SCORED}{index}": index for index in range(len(texts))}
        for key, index in waiting.items():
            prompt = {"prompt_token_ids": list(texts[index])}
            self._engine.add_request(key, prompt, parameters, lora_request=self._adapters.get(role))
        logprobs: dict[int, tuple[float, ...]] = {}
        while len(logprobs) < len(texts):
            if not self._engine.has_unfinished_requests():
                raise RunError(f"the engine scored {len(logprobs)} of {len(texts)} texts and stopped")
            for output in self._outputs():
                if not output.finished:
                    continue
                if output.request_id in waiting:
                    index = waiting[output.request_id]
                    logprobs[index] = one_each(output.prompt_logprobs, texts[index][1:])
                else:  # other requests continue meanwhile; their generations are handed out later
                    self._stashed.append(self._generation(output))
        return [logprobs[index] for index in range(len(texts))]

    def sleep(self) -> None:
        """Move the weights to the host's memory; drop keys and values, including kept prefixes."""
        if not self._engine.is_sleeping():
            self._drain()
            self._engine.sleep(level=1)

    def _outputs(self) -> list[Any]:
        return step(self._engine, self._drawn)

    def _drain(self) -> None:
        """Wait for a step that runs ahead of ended requests, because it still reads weights and cache."""
        core = getattr(self._engine.engine_core, "engine_core", None)  # None: in another process
        while core is not None and core.batch_queue and not self._engine.has_unfinished_requests():
            self._outputs()

    def _forget(self, key: str) -> _Active | None:
        active = self._active.pop(key, None)
        if active is not None:
            self._drawn.pop(active.key, None)
        return active

    def _wake(self, part: str | None = None) -> None:
        """Wake all that sleeps, or only the weights, which leaves a push more room.

        Args:
            part: vLLM's word, `weights`; None: everything.
        """
        if self._engine.is_sleeping():
            self._engine.wake_up(None if part is None else [part])

    def _note_version(self, manifest: WeightManifest) -> None:
        for active in self._active.values():
            active.spans.append((self._tokens_so_far(active), manifest.version))
        self.weight_version = manifest.version
        self._num_loads += 1

    def _reload(self, half: str, manifest: WeightManifest, arrays: Arrays) -> None:
        if self._is_parallel:
            reload_in_ranks(self._engine.model_executor, manifest, arrays)
            return
        self._load_half(
            half, {name: as_tensor(array, manifest.dtypes[name]) for name, array in arrays.items()}
        )

    def _load_half(self, half: str, tensors: Mapping[str, torch.Tensor]) -> None:
        if half not in self._loaders:
            model = self._model if self.mask_version is None else getattr(self._model, half)
            self._loaders[half] = DirectLoader(model, partial(reload_model, self._engine.vllm_config))
        self._loaders[half].load(tensors)

    def _tokens_so_far(self, active: _Active) -> int:
        if active.drawn is not None:
            return len(active.drawn.tokens)
        state = self._engine.output_processor.request_states[active.key]
        return len(state.detokenizer.output_token_ids)

    def _generation(self, output: Any) -> Generation:
        completion = output.outputs[0]
        active = self._forget(output.request_id)
        assert active is not None, "expected the end of a request that was added"
        drawn = active.drawn
        tokens = tuple(completion.token_ids if drawn is None else drawn.tokens)
        stop = completion.stop_reason
        text = completion.text
        if not isinstance(stop, str) or self._text.keeps_marks:
            written = self._text(tokens)
            text = written.rpartition(stop)[0] if isinstance(stop, str) and stop in written else written
        return Generation(
            request_id=int(output.request_id),
            tokens=tokens,
            text=text,
            behavior_logprobs=one_each(completion.logprobs, tokens) if drawn is None else drawn.one_each(),
            versions=token_versions(active.spans, len(tokens)),
            finish_reason=FinishReason.STOP if completion.finish_reason == "stop" else FinishReason.LENGTH,
        )


def vllm_activations() -> tuple[type[torch.nn.Module], ...]:
    """Return vLLM's tanh-form GELUs, which are eight operations on a CPU."""
    from vllm.model_executor.layers.activation import FastGELU, NewGELU

    return NewGELU, FastGELU


def chosen_arguments(
    model: str,
    tokenizer: str,
    max_length: int | None,
    settings: RolloutSettings,
    mask_rule: MaskRule | None,
    revision: str | None,
) -> dict[str, Any]:
    """Return the engine's arguments that follow from the run's settings and from the machine."""
    on_gpu = torch.cuda.is_available()
    return {
        "model": model,
        "tokenizer": tokenizer,
        "revision": revision,
        "tokenizer_revision": revision if tokenizer == model else None,
        "max_model_len": max_length or -1,  # -1: as much of the model's window as fits the cache
        "max_num_seqs": settings.max_concurrent,
        "dtype": choose_dtype(settings.dtype, on_gpu=on_gpu),
        "enforce_eager": not on_gpu,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": None if on_gpu else round(settings.kv_cache_gib * 2**30),
        # The behaviour policy is the sampled distribution, after temperature, top-k and top-p.
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "enable_sleep_mode": settings.sleep and on_gpu,  # refused on a CPU, where sleep() frees nothing
        # With seeds, a prompt read in two chunks rewinds the request's random generator, which only CUDA's
        # can do. Elsewhere a prompt is always read whole.
        "enable_chunked_prefill": on_gpu,
        "disable_log_stats": True,
        "generation_config": "vllm",  # only the run's settings decide how tokens are drawn
        "seed": 0,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "distributed_executor_backend": "mp" if settings.tensor_parallel_size > 1 else None,
        **(twin_arguments() if mask_rule else {}),
        **(gpu_arguments(settings.max_concurrent, settings.engine_args) if on_gpu else {}),
    }


def _start(arguments: Any) -> Any:
    """Start vLLM's engine.

    Raises:
        InputError: vLLM does not serve adapters for this architecture.
    """
    from vllm.v1.engine.llm_engine import LLMEngine

    gc.freeze()  # vLLM collects garbage at its start, but not what its imports made
    try:
        with off_the_path_of_children():
            return LLMEngine.from_engine_args(arguments)
    except ValueError as error:
        if "does not support LoRA" not in str(error):
            raise
        raise InputError(
            f"model.adapter.serve=adapter: vLLM says that {error} Expected model.adapter.serve=merged"
        ) from None


def token_versions(spans: list[tuple[int, int]], num_tokens: int) -> tuple[int, ...]:
    """Return each token's version from (first token, version) spans.

    >>> token_versions([(0, 4), (2, 5)], 3)
    (4, 4, 5)
    """
    versions: list[int] = []
    for (start, version), following in zip(spans, [*spans[1:], (num_tokens, -1)], strict=True):
        versions += [version] * (following[0] - start)
    return tuple(versions[:num_tokens])


def _check_sampling(sampling: Sampling, has_mask: bool) -> None:
    if sampling.masked and not has_mask:
        raise InputError(
            "masked sampling was requested, but the engine was started without a mask_rule: "
            "only runs of algorithm=nlpo have a mask"
        )
    if sampling.num_beams > 1:
        raise InputError(
            f"vLLM has no beam search, but {sampling.num_beams} beams were requested: "
            "set rollout.engine=transformers, or one beam"
        )


def sampling_parameters(sampling: Sampling, seed: int) -> Any:
    """Return vLLM's parameters for a request; `logprobs=0` requests the sampled token's log-probability.

    vLLM adds the end tokens: the tokenizer's, and all in the model's generation config.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop) or None,
        ignore_eos=sampling.ignore_eos,
        seed=seed % 2**63,
        logprobs=0,
        flat_logprobs=True,  # two lists a request instead of two objects a token
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=MASKED if sampling.masked else None,
    )
