"""Keep the keys and values of a batch of sequences, so that each step computes one token of each.

Keys and values of a layer lie in one block of memory, with a row for each sequence and a column for each
token. A new token is written into its column. The last sequence overwrites a sequence that ends. Neither
copies the rest, as transformers' cache does at every step.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.cache_utils import EncoderDecoderCache as TwoCaches

from contracts.errors import InputError
from contracts.vocabulary import decoder_start

SPARE_COLUMNS = 64  # tokens by which a full block grows


class Decoding(Protocol):
    """Batch of sequences as far as one model has read them."""

    def read(self, tokens_B: Tensor | None) -> Tensor:
        """Read a token of each row, None before the first; return the next tokens' logits, (B, V) float32."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Make row i from the old row `rows[i]`; rows may be left out or doubled."""
        ...


def begin(lm: Any, prompts: Sequence[Sequence[int]]) -> Decoding:
    """Begin a batch that has read nothing; an encoder-decoder's prompts are the encoder's input."""
    return EncoderDecoder(lm, prompts) if lm.config.is_encoder_decoder else Causal(lm, prompts)


def start_token(lm: Any) -> int:
    """Return the token that an encoder-decoder's decoder reads first."""
    return decoder_start(
        getattr(lm.config, "decoder_start_token_id", None), lm.generation_config.decoder_start_token_id
    )


def check_cache(config: Any) -> None:
    """Refuse models that keep other states than keys and values, such as state-space layers."""
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    others = {
        type(layer).__name__ for layer in DynamicCache(config=config).layers if type(layer) not in known
    }
    if others:
        raise InputError(
            f"engine=transformers keeps keys and values only; {config.model_type} also needs "
            f"{', '.join(sorted(others))}. Set rollout.engine=vllm"
        )


@torch.inference_mode()
def try_out(lm: Any) -> None:
    """Generate a token, to check that this engine works with the model.

    Raises:
        InputError: the engine can't.
    """
    try:
        decoding = begin(lm, [[0, 0]])
        decoding.read(decoding.read(None).argmax(-1))
    except InputError as error:
        raise InputError(f"engine=transformers can't generate with {lm.config.model_type}: {error}") from None
    except Exception as error:  # a model with another interface may raise anything
        raise InputError(
            f"engine=transformers can't generate with {lm.config.model_type}: {type(error).__name__}: {error}"
        ) from error


class KeyValues(DynamicLayer):
    """Block of one layer; `keys` and `values` are views of its used part, (B, heads, tokens, head size)."""

    _blocks: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self._blocks is None:
            self._blocks = (key_states, value_states)
            self.keys, self.values = self._blocks
            self.is_initialized = True
            return self._blocks
        num_rows, begin = self.keys.shape[0], self.keys.shape[2]
        end = begin + key_states.shape[-2]
        if end > self._blocks[0].shape[-2]:
            self._allocate(num_rows, end + SPARE_COLUMNS)
        self._show(num_rows, end)
        self.keys[:, :, begin:] = key_states
        self.values[:, :, begin:] = value_states
        return self.keys, self.values

    def select(self, num_rows: int, targets: Tensor, sources: Tensor) -> None:
        """Copy rows `sources` over rows `targets`, then keep the first `num_rows`."""
        assert self._blocks is not None
        num_columns = self.keys.shape[-2]
        copied = (self.keys[sources], self.values[sources]) if len(targets) else None
        if num_rows > self._blocks[0].shape[0]:
            self._allocate(num_rows, self._blocks[0].shape[-2])
        self._show(num_rows, num_columns)
        if copied is not None:
            self.keys[targets], self.values[targets] = copied

    def _allocate(self, num_rows: int, num_columns: int) -> None:
        blocks = []
        for used in (self.keys, self.values):
            old_rows, num_heads, old_columns, head_size = used.shape
            block = used.new_empty(num_rows, num_heads, num_columns, head_size)
            block[:old_rows, :, :old_columns] = used
            blocks.append(block)
        self._blocks = (blocks[0], blocks[1])

    def _show(self, num_rows: int, num_columns: int) -> None:
        assert self._blocks is not None
        self.keys, self.values = (block[:num_rows, :, :num_columns] for block in self._blocks)


class Causal:
    """Batch of a causal model; prompts are padded on the left, so that all newest tokens share a column."""

    def __init__(self, lm: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._lm, device = lm, lm.device
        width = max(len(prompt) for prompt in prompts)
        rows = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)[:, None]
        self._prompts = torch.tensor(rows, device=device)
        self._positions = (torch.arange(width, device=device) - (width - lengths)).clamp(min=0)
        # None if no row is padded, because without a mask the fast attention kernels apply.
        is_padded = bool((lengths < width).any())
        self._is_token = torch.arange(width, device=device) >= width - lengths if is_padded else None
        self._cache = Cache(layer_class_to_replicate=KeyValues)

    def read(self, tokens_B: Tensor | None) -> Tensor:
        inputs = self._prompts
        if tokens_B is not None:
            inputs = tokens_B[:, None]
            self._positions = self._positions[:, -1:] + 1
            if self._is_token is not None:
                self._is_token = torch.nn.functional.pad(self._is_token, (0, 1), value=True)
        out = self._lm(
            input_ids=inputs,
            attention_mask=self._is_token,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if tokens_B is None and not self._cache.get_seq_length():
            raise InputError("it keeps no keys and values, so it would forget each token that it read")
        return out.logits[:, -1].float()

    def select(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, device=self._positions.device)
        self._positions = self._positions[index]
        self._is_token = None if self._is_token is None else self._is_token[index]
        _select(self._cache, rows, [i for i, row in enumerate(rows) if i != row], index)


class EncoderDecoder:
    """Batch of an encoder-decoder model.

    The encoder reads the prompts once, padded on the right, because absolute positions count from the first
    token. The responses begin with the decoder's start token in one column, so they are never padded.
    """

    def __init__(self, lm: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._lm, device = lm, lm.device
        width = max(len(prompt) for prompt in prompts)
        rows = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)[:, None]
        is_padded = bool((lengths < width).any())
        self._is_token = torch.arange(width, device=device) < lengths if is_padded else None
        self._encoded = lm.get_encoder()(
            input_ids=torch.tensor(rows, device=device), attention_mask=self._is_token
        )
        self._start_B = torch.full((len(prompts),), start_token(lm), device=device)
        self._prompt_of_row = list(range(len(prompts)))
        self._written = Cache(layer_class_to_replicate=KeyValues)
        self._prompts = Cache(layer_class_to_replicate=KeyValues)
        self._caches = TwoCaches(self._written, self._prompts)

    def read(self, tokens_B: Tensor | None) -> Tensor:
        inputs_B = self._start_B if tokens_B is None else tokens_B
        out = self._lm(
            encoder_outputs=self._encoded,
            attention_mask=self._is_token,
            decoder_input_ids=inputs_B[:, None],
            past_key_values=self._caches,
            use_cache=True,
        )
        return out.logits[:, -1].float()

    def select(self, rows: Sequence[int]) -> None:
        states = self._encoded.last_hidden_state
        index = torch.tensor(rows, device=states.device)
        before, after = self._prompt_of_row, [self._prompt_of_row[row] for row in rows]
        _select(self._written, rows, [i for i, row in enumerate(rows) if i != row], index)
        # Beams of one prompt change places at every step, but all attend to the same prompt.
        moved = [i for i, prompt in enumerate(after) if i >= len(before) or before[i] != prompt]
        _select(self._prompts, rows, moved, index)
        self._prompt_of_row = after
        # Once the prompts' keys and values are cached, only the shape of the encoder's output matters.
        self._encoded.last_hidden_state = states[:1].expand(len(rows), -1, -1)
        self._is_token = None if self._is_token is None else self._is_token[index]


def _select(cache: Cache, rows: Sequence[int], moved: Sequence[int], index: Tensor) -> None:
    targets = torch.tensor(moved, dtype=torch.long, device=index.device)
    for layer in cache.layers:
        layer.select(len(rows), targets, index[targets])
