"""The references' perplexity under the policy, by hand."""

import math

import pytest

from contracts.errors import InputError
from services.policy_perplexity import PolicyPerplexity
from tests.fakes import FakeWorkers


class Letters:
    """Tokens are the numbers of the letters."""

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) - ord("a") for letter in text if letter.isalpha()]}


@pytest.mark.parametrize(("window", "stride"), [(100, 1), (4, 2), (3, 1), (2, 1)])
def test_every_token_but_the_first_counts_once(window: int, stride: int) -> None:
    """The fake policy gives token n the log-probability -n/4: of a, b … h all but a's, 28/4 over 7 tokens."""
    compute = PolicyPerplexity(Letters(), window, stride)

    assert compute(["abcd", "efgh"], FakeWorkers([])) == pytest.approx(math.exp(28 / 4 / 7))


def test_texts_without_two_tokens_have_none() -> None:
    with pytest.raises(InputError, match="1 references make 1 tokens, and a perplexity needs two"):
        PolicyPerplexity(Letters(), 8, 4)(["a"], FakeWorkers([]))
