"""Write the model, tokenizer and prompts that both sides of the peer benchmark load.

    python make_model.py SHAPE FOLDER

FOLDER becomes a Hugging Face model (a GPT-2 of a shape in `work.py`) with random weights, its tokenizer, and
`prompts.jsonl`: 64 lines `{"prompt": ...}` of 8 to 16 tokens. The same seed writes the same bytes.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from work import PROMPT_TOKENS, SHAPES, Shape

PROMPTS = 64
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def make_words(vocabulary: int) -> list[str]:
    return [f"w{number:03d}" for number in range(vocabulary - len(SPECIAL))]


def make_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of words between spaces; the special tokens take the ids 0, 1 and 2."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL + words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=64,
    )


def make_model(shape: Shape, seed: int) -> GPT2LMHeadModel:
    """Make a GPT-2 that never ends a text early: see `_never_sample`."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=64,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    _never_sample(model, len(SPECIAL))
    return model


@torch.no_grad()
def _never_sample(model: GPT2LMHeadModel, tokens: int) -> None:
    """Give the first `tokens` ids logits of about -60, so that both sides write whole responses.

    The head is the embedding, without a bias: one coordinate of the last state is made large and reserved.
    """
    embedding = model.transformer.wte.weight
    embedding[:, 0] = 0.0
    embedding[:tokens] = 0.0
    embedding[:tokens, 0] = -10.0
    model.transformer.ln_f.bias[0] = 8.0


def make_prompts(words: list[str], seed: int) -> list[str]:
    """Make prompts of random words; the first has all 16, so that every seed has the same padded width."""
    generator = random.Random(seed)
    shortest, longest = PROMPT_TOKENS
    lengths = [longest] + [generator.randint(shortest, longest) for _ in range(PROMPTS - 1)]
    return [" ".join(generator.choices(words, k=length)) for length in lengths]


def main() -> None:
    """Write everything into the folder named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    shape = SHAPES[arguments.shape]
    words = make_words(shape.vocabulary)
    make_model(shape, arguments.seed).save_pretrained(arguments.folder)
    make_tokenizer(words).save_pretrained(arguments.folder)
    lines = [json.dumps({"prompt": prompt}) for prompt in make_prompts(words, arguments.seed)]
    (arguments.folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
