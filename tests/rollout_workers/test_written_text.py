"""Texts of generated tokens: special tokens go, but marks of thoughts stay."""

from rollout_workers.engines.written_text import WrittenText
from tests.chat_templates import chat_tokenizer


def written(template: str, text: str) -> str:
    tokenizer = chat_tokenizer(template)
    return WrittenText(tokenizer)(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_marks_of_thoughts_stay_where_they_are_special_tokens() -> None:
    text = "<think>2 + 2</think>4"
    assert written("{{ '<think></think><|stop|>' }}", f"{text}<|stop|><eos>") == text


def test_other_special_tokens_go() -> None:
    assert written("{{ '<|stop|>' }}", "4<|stop|><eos>") == "4"


def test_the_channels_of_gpt_oss_stay() -> None:
    template = "{{ '<|channel|><|message|><|start|><|end|><|return|>' }}"
    thought = "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant"
    text = "<|channel|>final<|message|>4"
    assert written(template, f"{thought}{text}<|return|>") == thought + text
