"""Marks of a tokenizer, which foreign texts must not hold: broken there, and nothing else is."""

import copy

from contracts.conversations.encoding import marks_of, without_marks
from tests.chat_templates import CALLS_TOOLS, chat_tokenizer


def test_runs_of_blanks_that_a_tokenizer_adds_stay_as_they_are() -> None:
    its = copy.deepcopy(chat_tokenizer(CALLS_TOOLS))
    its.add_tokens(["  ", "   ", "    ", "\t\t"])  # as GPT-NeoX's and Phi's do
    code = "if x:\n    return 1\n\t\tpass"
    assert without_marks(f"{code}<|stop|>", marks_of(its)) == f"{code}< |stop|>"
