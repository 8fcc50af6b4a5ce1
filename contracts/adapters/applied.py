"""Put an adapter on its base by peft: check its fit, and merge it."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from contracts.adapters.folder import WEIGHTS, AdapterFolder
from contracts.errors import InputError
from contracts.network.hub import use_cache_if_unreachable

PROBE_TOKENS = 12
TOLERANCE = 1e-3  # limit on the change of a merged model's log-probabilities
PREFIX = "base_model.model."  # stands before the names of peft's files


def base_model(base: str, revision: str | None, setting: str) -> Any:
    """Load the base in float32.

    Raises:
        InputError: the base does not load, or its weights are quantised.
    """
    disable_progress_bar()
    use_cache_if_unreachable()
    try:
        config = AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=False)
        if getattr(config, "quantization_config", None):
            raise InputError(
                f"{setting}: its base {base} is quantised, and merged weights would be rounded again. Set "
                "model.base= to the unquantised model"
            )
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return kind.from_pretrained(
            base, revision=revision, config=config, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{setting}: its base {base} can't be loaded: {_first(error)}. Set model.base=FOLDER_OR_HUB_NAME"
        ) from None


def merged(lm: Any, adapter: AdapterFolder, setting: str) -> Any:
    """Return the base with the adapter merged in.

    Raises:
        InputError: the adapter is of another base, or the merged model differs from the adapted one.
    """
    _resize(lm, adapter)
    adapted = put_on(lm, adapter.folder, setting).eval()
    tokens = torch.arange(3, 3 + PROBE_TOKENS)[None] % lm.get_input_embeddings().weight.shape[0]
    before = _logprobs(adapted, tokens)
    try:
        whole = adapted.merge_and_unload()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise InputError(f"{setting} does not merge: {_first(error)}") from None
    _untie(whole, setting)
    worst = (_logprobs(whole.eval(), tokens) - before).abs().max().item()
    if not worst <= TOLERANCE:
        raise InputError(
            f"{setting}: the merged model is not the adapted one: a log-probability differs by {worst:.2g}. "
            "Adapters of tied embeddings and some rare kinds do not merge"
        )
    return whole


def put_on(lm: Any, folder: Path, setting: str, **options: Any) -> Any:
    """Return peft's model of the base with the adapter in `folder`.

    Raises:
        InputError: the adapter's matrices do not belong to this base.
    """
    try:
        adapted = PeftModel.from_pretrained(lm, str(folder), **options)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{setting} does not fit its base: {_first(error)}") from None
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
    with safe_open(folder / WEIGHTS, "pt") as file:
        got = set(file.keys())
    there = {*adapted.state_dict(), *(name.replace(".base_layer.", ".") for name in adapted.state_dict())}
    odd = sorted(expected - got) or sorted(got - expected - there)
    if odd:
        what = "lacks" if odd[0] in expected else "has no place for"
        subject = "it" if odd[0] in expected else "the base"
        raise InputError(
            f"{setting} is an adapter of another base: {subject} {what} {odd[0].removeprefix(PREFIX)}"
            f"{f' and {len(odd) - 1} more' if odd[1:] else ''}. Set model.base= to the adapter's own base"
        )
    return adapted


def save_tokenizer(
    adapter: AdapterFolder, base: str, revision: str | None, lm: Any, out: Path, setting: str
) -> None:
    """Save the adapter's tokenizer, or else the base's, beside the merged weights.

    Raises:
        InputError: the tokenizer has tokens without an embedding in the adapter and the base.
    """
    place, version = (str(adapter.folder), None) if adapter.has_tokenizer else (base, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=version, trust_remote_code=False)
    except (OSError, ValueError, TypeError):
        return  # the model's reader then requires model.tokenizer
    rows = lm.get_input_embeddings().weight.shape[0]
    if adapter.has_tokenizer and len(tokenizer) > rows:
        raise InputError(
            f"{setting}: its tokenizer has {len(tokenizer)} tokens, and base and adapter have embeddings for "
            f"{rows}: an adapter with new tokens is saved with their embeddings (save_embedding_layers=True)"
        )
    tokenizer.save_pretrained(out)


def embedding_rows(lm: Any, folder: Path) -> int | None:
    """Return the number of tokens in the adapter's embeddings; None if it has no embeddings."""
    table = lm.get_input_embeddings()
    name = next(name for name, module in lm.named_modules() if module is table)
    with safe_open(folder / WEIGHTS, "pt") as file:
        names = set(file.keys())
        for key, axis in ((f"{PREFIX}{name}.weight", 0), (f"{PREFIX}{name}.lora_embedding_A", 1)):
            if key in names:
                return int(file.get_slice(key).get_shape()[axis])
    return None


def _resize(lm: Any, adapter: AdapterFolder) -> None:
    rows = embedding_rows(lm, adapter.folder)
    if rows is not None and rows != lm.get_input_embeddings().weight.shape[0]:
        lm.resize_token_embeddings(rows, mean_resizing=False)


def _untie(lm: Any, setting: str) -> None:
    """Correct the configuration if the adapter made head and embedding different."""
    table, head = lm.get_input_embeddings(), lm.get_output_embeddings()
    if not lm.config.get_text_config().tie_word_embeddings or head is None:
        return
    if head.weight.data_ptr() == table.weight.data_ptr() or head.weight.equal(table.weight):
        return
    if lm.config.is_encoder_decoder:
        raise InputError(
            f"{setting} changes one of the encoder-decoder's tied embeddings and not the others; expected an "
            "adapter of the layers between them"
        )
    lm.config.tie_word_embeddings = lm.config.get_text_config().tie_word_embeddings = False


@torch.no_grad()
def _logprobs(lm: Any, tokens: torch.Tensor) -> torch.Tensor:
    more = {"decoder_input_ids": tokens} if lm.config.is_encoder_decoder else {}
    logprobs: torch.Tensor = lm(input_ids=tokens, **more).logits.float().log_softmax(-1)
    return logprobs


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
