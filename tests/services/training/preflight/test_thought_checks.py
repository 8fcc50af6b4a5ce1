"""Warnings of chat templates that end a prompt inside or after a thought."""

import pytest

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from reward_servers.settings import Part
from services.training.preflight.checks.thought_checks import thought_warnings
from tests.chat_templates import chat_tokenizer

END = "{% if add_generation_prompt %}<|start|>assistant\n{{ thought }}{% endif %}"
TURNS = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|stop|>\n{% endfor %}"
TAGS = Part(name="format", options={"tags": ["think", "answer"]})
PATTERN = Part(name="format", options={"pattern": "<think>.*</think>.*"})
MATH = Part(name="math")


def warnings(end: str, *rewards: Part) -> str:
    template = TURNS + END.replace("{{ thought }}", end)
    return " ".join(thought_warnings(Chat(chat_tokenizer(template), ChatForm()), rewards))


@pytest.mark.parametrize("reward", [TAGS, PATTERN])
def test_an_opened_thought_is_named_with_what_format_makes_of_it(reward: Part) -> None:
    warned = warnings("<think>\n", MATH, reward)
    assert (
        "ends every prompt in '<think>'" in warned and "format grades texts with '<think>' in front" in warned
    )


def test_rewards_of_answers_hear_of_an_opened_thought_too() -> None:
    warned = warnings("[THINK]", MATH)
    assert "ends every prompt in '[THINK]'" in warned and "format" not in warned


def test_an_empty_thought_leaves_a_format_without_its_tag() -> None:
    assert "empty thought" in warnings("<think>\n\n</think>\n\n", TAGS)
    assert warnings("<think>\n\n</think>\n\n", MATH) == ""


def test_other_templates_and_runs_without_rewards_have_no_warning() -> None:
    assert warnings("", MATH, TAGS) == "" and warnings("<think>\n") == ""
    assert thought_warnings(None, [MATH]) == []
