"""Stand-ins for --small: tiny untrained models, and rows where no data are given.

They have the shape of what they stand for (a causal model, an encoder-decoder, a classifier), and a tokenizer
that reads any text. What such models write means nothing.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.generation.run_model import quiet_transformers
from services.reproduction.places import Places
from services.reproduction.recipe import Data, Model, Recipe
from services.reproduction.stand_in_rows import write_rows

WIDTH, LAYERS, HEADS, WINDOW = 64, 2, 2, 1024
END, PAD = "<|endoftext|>", "<pad>"
# How an instruct model's turns are written.
CHAT = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def small_places(recipe: Recipe, data: Path | None, folder: Path) -> Places:
    """Make a stand-in for each of the recipe's models, and rows for each data set that `data` lacks."""
    folder = folder.absolute()
    models = {name: make_model(folder / "models" / name, each) for name, each in recipe.models.items()}
    return Places(models, {name: _rows(name, each, data, folder) for name, each in recipe.data.items()})


def _rows(name: str, each: Data, data: Path | None, folder: Path) -> Path:
    """Return the given folder where it has what is needed, else one with made rows."""
    given = None if data is None else (data / name).absolute()
    if given is not None and (given / each.file).exists():
        return given
    return write_rows(folder / "data" / name, each.like or name)


def make_model(folder: Path, model: Model, seed: int = 0) -> Path:
    """Save a random model of its kind with two layers, 64 wide; return its folder, absolute."""
    folder = folder.absolute()
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSequenceClassification,
        GPT2Config,
        T5Config,
    )

    quiet_transformers()
    is_seq2seq = model.kind == "seq2seq"
    tokenizer = byte_tokenizer(ends=is_seq2seq)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config: Any
    if is_seq2seq:
        shape = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH, "num_layers": LAYERS}
        start = tokenizer.pad_token_id
        config = T5Config(
            vocab_size=len(tokenizer), num_heads=HEADS, decoder_start_token_id=start, **shape, **ids
        )
    else:
        shape = {"n_positions": WINDOW, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
        config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=tokenizer.eos_token_id, **shape, **ids)
    if model.kind == "classifier":
        config.num_labels = model.labels
    kinds = {"causal": AutoModelForCausalLM, "seq2seq": AutoModelForSeq2SeqLM}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kinds.get(model.kind, AutoModelForSequenceClassification).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer(*, ends: bool) -> Any:
    """Make a tokenizer of bytes, with a chat template; `ends` puts the end token behind texts, as T5 does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters: Iterable[str] = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({word: n for n, word in enumerate([PAD, END, *letters])}, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    if ends:
        bare.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bare,
        pad_token=PAD,
        eos_token=END,
        bos_token=END,
        model_max_length=WINDOW,
        chat_template=CHAT,
    )
