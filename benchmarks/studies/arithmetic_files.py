"""Word problems in GSM8K's form, and an untrained instruct model for a CPU.

    {"question": "Ada has 12 coins and gets 30 more. How many coins does Ada have now?",
     "answer": "12 + 30 = 42\n#### 42"}

No two questions share both numbers, so one split's answers can't be memorised from another's.
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "coins", "stamps", "shells", "cards")
STORIES = (
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "A box holds {a} red {things} and {b} blue {things}. How many {things} does the box hold?",
    "{name} finds {a} {things} on Monday and {b} {things} on Tuesday. "
    "How many {things} does {name} find in all?",
)
LARGEST = 50  # largest number that is added
# One folder for the warm start, which sees solutions, one for what follows; both have the held-out questions
FOLDERS, NUM_TRAIN, HELD_OUT = ("shown", "asked"), 1100, {"validation": 50, "test": 200}
START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY, WINDOW = 400, 256


def questions(seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield a question about each pair of numbers, in a random order, each in a random story."""
    draw = random.Random(seed)
    pairs = [(a, b) for a in range(1, LARGEST + 1) for b in range(1, LARGEST + 1)]
    draw.shuffle(pairs)
    for a, b in pairs:
        story = draw.choice(STORIES)
        question = story.format(name=draw.choice(NAMES), things=draw.choice(THINGS), a=a, b=b)
        yield {"question": question, "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}


def write_questions(root: Path) -> list[str]:
    """Write `shown/` and `asked/`, each with a file for each split; return the texts of the warm start."""
    drawn = questions()
    held_out = {split: list(islice(drawn, count)) for split, count in HELD_OUT.items()}
    texts = []
    for name in FOLDERS:
        rows = list(islice(drawn, NUM_TRAIN))
        texts += [f"user\n{row['question']}assistant\n{row['answer']}" for row in rows] if not texts else []
        for split, examples in {"train": rows, **held_out}.items():
            file = root / name / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{json.dumps(row)}\n" for row in examples))
    return texts


def make_model(folder: Path, texts: Sequence[str], *, width: int = 64, seed: int = 0) -> None:
    """Save a Llama of two layers with a chat template; its tokenizer takes each digit for itself."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token=END, pad_token="<|endoftext|>", model_max_length=WINDOW
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 32,  # heads of 32: the smallest that vLLM's kernels for CPUs take
        num_key_value_heads=width // 32,
        max_position_embeddings=WINDOW,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
