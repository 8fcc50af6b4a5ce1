"""The references' perplexity under the policy, by hand."""

import math

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.training.loop.evaluations.policy_perplexity import PolicyPerplexity, texts_of
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

    prompts = [Prompt("0", "x", ("abcd",), {"whole": "ab"}), Prompt("1", "y", ("efgh",), {"whole": "cd"})]
    assert compute(prompts, FakeWorkers([])) == pytest.approx(math.exp(28 / 4 / 7))


def test_the_texts_may_be_in_the_meta_data() -> None:
    """Log-probabilities of a, b, c, d, all but a's: (1 + 2 + 3) / 4 over 3 tokens."""
    prompts = [Prompt("0", "x", ("zz",), {"whole": "ab"}), Prompt("1", "y", ("zz",), {"whole": "cd"})]
    compute = PolicyPerplexity(Letters(), 100, 1, meta_key="whole")
    assert compute(prompts, FakeWorkers([])) == pytest.approx(math.exp(6 / 4 / 3))
    with pytest.raises(
        InputError, match="prompt 0 has no text of that name in its meta data; there is: whole"
    ):
        texts_of(prompts, "reference")


def test_texts_without_two_tokens_have_none() -> None:
    with pytest.raises(InputError, match="1 texts make 1 tokens, but a perplexity needs two"):
        PolicyPerplexity(Letters(), 8, 4)([Prompt("0", "x", ("a",))], FakeWorkers([]))
