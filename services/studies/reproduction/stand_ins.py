"""Stand-ins for --small: tiny untrained models, and rows for missing data.

They have the original's kind (causal model, encoder-decoder, classifier), and a tokenizer for any text.
Their texts are meaningless.
"""

from pathlib import Path
from typing import Any

from services.models.new_tokenizer import byte_tokenizer
from services.models.quiet import quiet_transformers
from services.studies.reproduction.places import Places
from services.studies.reproduction.recipe import Data, Model, Recipe
from services.studies.reproduction.stand_in_rows import write_rows

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
    models = {name: make_model(folder / "models" / name, model) for name, model in recipe.models.items()}
    return Places(
        models, {name: _rows(name, data_set, data, folder) for name, data_set in recipe.data.items()}
    )


def _rows(name: str, data_set: Data, data: Path | None, folder: Path) -> Path:
    """Return the user's folder if it has the files, else a folder with made rows."""
    data_folder = None if data is None else (data / name).absolute()
    if data_folder is not None and (data_folder / data_set.file).exists():
        return data_folder
    return write_rows(folder / "data" / name, data_set.like or name)


def make_model(folder: Path, model: Model, seed: int = 0) -> Path:
    """Save a random model of its kind with two layers, 64 wide; return its absolute folder."""
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
    tokenizer = tokenizer_of_bytes(ends=is_seq2seq)
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


def tokenizer_of_bytes(*, ends: bool) -> Any:
    """Make a tokenizer of bytes, with a chat template; `ends` puts the end token behind texts, as T5 does."""
    from tokenizers import processors

    made = byte_tokenizer(
        (PAD, END), pad_token=PAD, eos_token=END, bos_token=END, model_max_length=WINDOW, chat_template=CHAT
    )
    if ends:
        behind = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
        made.backend_tokenizer.post_processor = behind
    return made
