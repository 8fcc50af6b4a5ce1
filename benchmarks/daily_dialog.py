"""The start of docs/results/daily_dialog.md: a small untrained GPT with a tokenizer of its data.

`python -m benchmarks.daily_dialog FOLDER --data DATA`
"""

import argparse
import json
from pathlib import Path
from typing import Any

VOCABULARY, WINDOW = 1500, 256
EOU = "<EOU>"


def make_model(folder: Path, data: Path) -> None:
    """Save a model of a million weights: four layers, width 128, heads of 32 (vLLM's least on a CPU)."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = make_tokenizer(data / "train.jsonl")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=WINDOW,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(file: Path) -> Any:
    """Train byte pairs on the dialogues; the mark after an utterance is one token of plain text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    dialogues = (json.loads(line)["dialog"] for line in file.read_text().splitlines())
    backend.train_from_iterator((f" {text.strip()}" for dialogue in dialogues for text in dialogue), trainer)
    backend.add_tokens([AddedToken(EOU, lstrip=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<end>",
        eos_token="<end>",
        pad_token="<end>",
        model_max_length=WINDOW,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train.jsonl")
    asked = parser.parse_args()
    make_model(asked.folder, asked.data)


if __name__ == "__main__":
    main()
