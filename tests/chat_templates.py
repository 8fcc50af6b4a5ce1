"""Chat templates that behave as the published ones do, and tokenizers and tiny models that have them.

Each is named after its behaviour. The behaviours are those of the templates of Qwen2.5, Qwen3, Llama 3.1,
Gemma 2 and 3, Phi-3 and Phi-4, gpt-oss and SmolLM3. `TEXTS` has the published ones beside them.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = re.compile(r"</?[a-z_]+>|<\|[a-z_]+\|>")
# Texts as in the models' tokenizers: a folder of *.jinja, which a machine may have.
FOLDER = "WHETSTONE_CHAT_TEMPLATES"
OF_MODELS = ("qwen2_5", "qwen3", "llama3_1", "llama3_2", "gemma", "gemma3", "phi3", "phi3_5", "gptoss")

# A system message of its own where there is none; messages are only ever appended.
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|start|>system\nYou help.<|stop|>\n{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# The reasoning of answers before the last question is dropped; the last answer gets an empty one.
STRIPS_REASONING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set said = m.content.split('</think>')[-1].strip() %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip() "
    "if '</think>' in m.content else '' %}"
    "<|start|>assistant\n"
    "{% if loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ said }}<|stop|>\n"
    "{% else %}<|start|>{{ m.role }}\n{{ m.content }}<|stop|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# Users and assistants take turns, nobody else speaks, blanks go, and the beginning token is written out.
REFUSES_SYSTEM = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# The system message goes into the first question.
MERGES_SYSTEM = (
    "{{ bos_token }}{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{% set talk = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in talk %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# An answer ends with another token where something follows; answers have channels, and today has a date.
ENDS_OTHERWISE = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if '<|channel|>' in m.content %}{{ raise_exception('channels belong into thinking') }}{% endif %}"
    "{% if loop.last and m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# A text that asks for nothing ends with the end token.
ENDS_THE_TEXT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
# A date in the system message, which an option sets; contents lose blanks.
DATED = (
    "{{ bos_token }}"
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% set own = messages[0].role == 'system' %}"
    "<|start_header|>system<|end_header|>\n\nToday: {{ date_string }}\n\n"
    "{{ messages[0].content | trim if own else '' }}<|eot|>"
    "{% for m in (messages[1:] if own else messages) %}"
    "<|start_header|>{{ m.role }}<|end_header|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}"
)
# An answer always follows a question, and the question ends with the answer's beginning.
ASKS_AT_ONCE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|stop|>{% else %}"
    "<|start|>{{ m.role }}<|sep|>{{ m.content }}<|stop|>"
    "{% if m.role == 'user' %}<|start|>assistant<|sep|>{% endif %}{% endif %}{% endfor %}"
)
# Without thinking, every answer begins with an empty thought; the system message names today, and has no end.
THINKS_BY_OPTION = (
    "{% set quick = enable_thinking is defined and not enable_thinking %}"
    "{% set thought = '<think>\n\n</think>\n' if quick else '' %}"
    "{% set own = messages[0].role == 'system' %}"
    "<|start|>system\nToday: {{ strftime_now('%d %B %Y') }}\nMode: {{ 'quick' if quick else 'slow' }}\n"
    "{{ messages[0].content if own else 'You help.' }}\n\n"
    "{% for m in (messages[1:] if own else messages) %}<|start|>{{ m.role }}\n"
    "{{ thought if m.role == 'assistant' else '' }}{{ m.content }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{{ thought }}{% endif %}"
)
# Tools are listed in a system message, and results have a role of their own.
CALLS_TOOLS = (
    "{% if tools %}<|start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
    "<|stop|>\n{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "default_system": DEFAULT_SYSTEM,
    "strips_reasoning": STRIPS_REASONING,
    "refuses_system": REFUSES_SYSTEM,
    "merges_system": MERGES_SYSTEM,
    "ends_otherwise": ENDS_OTHERWISE,
    "ends_the_text": ENDS_THE_TEXT,
    "dated": DATED,
    "asks_at_once": ASKS_AT_ONCE,
    "thinks_by_option": THINKS_BY_OPTION,
    "calls_tools": CALLS_TOOLS,
}


def published() -> Iterator[Path]:
    """The texts that trl brings along, and those in a folder of one's own."""
    import importlib.util

    spec = importlib.util.find_spec("trl")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
        yield from (file for name in OF_MODELS if (file := folder / f"{name}.jinja").is_file())
    if FOLDER in os.environ:
        yield from sorted(Path(os.environ[FOLDER]).glob("*.jinja"))


TEXTS = TEMPLATES | {path.stem: path.read_text() for path in published()}


def chat_tokenizer(template: str | None, *, adds_bos: bool = True) -> Any:
    """Return a byte-level tokenizer with the template and its marks as tokens.

    Args:
        adds_bos: whether plain texts begin with `<bos>`, as Llama's and Gemma's do.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    marks = set(MARK.findall(template or ""))
    marks |= {"<|user|>", "<|assistant|>", "<|system|>"} if "<|{{" in (template or "") else set()
    special = ["<pad>", "<eos>", "<bos>", *sorted(marks - {"<eos>", "<bos>"})]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {word: number for number, word in enumerate(words)}
    pairs = [("t", "h"), ("i", "n"), ("o", "u"), ("Ġ", "t")]  # so that pieces of a text may join otherwise
    vocab |= {left + right: len(vocab) + number for number, (left, right) in enumerate(pairs)}
    bare = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    bare.add_special_tokens(special)
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    if adds_bos:
        bare.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", model_max_length=2048
    )
    made.chat_template = template
    return made


def make_chat_model(folder: Path, template: str | None, *, adds_bos: bool = True) -> Path:
    """Write a tiny causal model that reads bytes, with a chat template; return its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = chat_tokenizer(template, adds_bos=adds_bos)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=2048,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
