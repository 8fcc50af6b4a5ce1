"""Perplexity: windows that score each token once, and the numbers of a loop by hand."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError, RewardError
from contracts.scores import Sample
from reward_servers.graders.perplexity import Perplexity
from reward_servers.models.language_model import language_model
from reward_servers.models.perplexity import perplexity, windows
from reward_servers.part_checks import check_at_hand
from reward_servers.server import MetricServer
from reward_servers.settings import parts
from tests.models import make_tiny_model

KEY = "fluency_metrics/perplexity"
WINDOW = 16


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    return str(make_tiny_model(folder, architecture=request.param, window=WINDOW, sharpness=8.0))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(2, 12), st.data())
def test_windows_score_each_token_but_the_first_once_with_context(
    num_tokens: int, size: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, size - 1))
    spans = list(windows(num_tokens, size, stride))
    scored = [token for window in spans for token in range(window.first, window.end)]
    assert scored == list(range(1, num_tokens))
    assert all(window.end - window.begin <= size and window.first > window.begin for window in spans)
    assert all(window.first - window.begin >= size - stride for window in spans[1:])


def test_a_stride_without_overlap_is_refused() -> None:
    with pytest.raises(
        InputError, match="stride=8, and the model reads windows of 8 tokens; expected 1 to 7"
    ):
        list(windows(20, 8, 8))


def test_the_corpus_value_weighs_tokens_not_texts() -> None:
    # nats: 1, 3 and 2 over three tokens: exp(2); the texts alone: exp(2), exp(2)
    value = perplexity([[1.0, 3.0], [2.0]])
    assert value.corpus == pytest.approx(math.exp(2)) and value.rows == pytest.approx((math.exp(2),) * 2)
    assert perplexity([[1.0, 1.0, 1.0], [5.0]]).corpus == pytest.approx(math.exp(2))
    assert perplexity([[1.0], []]).rows is None
    with pytest.raises(InputError, match="no text has a token"):
        perplexity([[], []])


def by_hand(model: str, tokens: list[int], stride: int) -> list[float]:
    """Every token alone, from the context that its window leaves it."""
    import torch
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model).eval()
    nlls, begin, end = [], 0, min(WINDOW, len(tokens))
    for place in range(1, len(tokens)):
        if place >= end:
            begin, end = begin + stride, min(begin + stride + WINDOW, len(tokens))
        with torch.no_grad():
            logits = lm(input_ids=torch.tensor([tokens[begin:place]])).logits[0, -1]
        nlls.append(-logits.log_softmax(-1)[tokens[place]].item())
    return nlls


def test_a_long_text_slides_as_the_loop_by_hand(model: str) -> None:
    text = " ".join(str(n * 7 % 100) for n in range(40))
    (nlls,) = language_model(model).token_nlls([text], stride=5)
    assert nlls == pytest.approx(by_hand(model, [3 + n * 7 % 100 for n in range(40)], 5), abs=1e-4)


def test_a_start_token_makes_the_first_word_count(model: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.bos_token = "<eos>"
    tokenizer.save_pretrained(tmp_path)
    nlls = language_model(str(tmp_path)).token_nlls
    assert nlls(["7 8"], 5) == [pytest.approx(by_hand(model, [1, 10, 11], 5), abs=1e-4)]
    assert nlls(["7 8"], 5, starts=False) == [pytest.approx(by_hand(model, [10, 11], 5), abs=1e-4)]
    assert nlls(["<eos> 7"], 5) == [pytest.approx(by_hand(model, [1, 10], 5), abs=1e-4)]  # it has one


def test_neither_padding_nor_batches_nor_order_change_it(model: str) -> None:
    texts = ["1 2 3", "4", " ".join(map(str, range(50))), "7 7", "<eos> <pad>", "\ud800 1"]
    together = language_model(model).token_nlls(texts, stride=5)
    alone = language_model(model, 1).token_nlls(texts[::-1], stride=5)[::-1]
    for batched, other in zip(together, alone, strict=True):
        assert batched == pytest.approx(other, abs=1e-4)


def test_of_chooses_the_texts(model: str) -> None:
    samples = [Sample("1 2", prompt="9", references=("3 4", "5")), Sample("6", prompt="8", references=("7",))]
    nlls = language_model(model).token_nlls

    def value(**options: object) -> float:
        values = Perplexity(model=model, stride=5, **options).compute(samples)  # type: ignore[arg-type]
        return values[KEY].corpus

    assert value() == pytest.approx(perplexity(nlls(["1 2", "6"], 5)).corpus)
    assert value(of="references") == pytest.approx(perplexity(nlls(["3 4", "5", "7"], 5)).corpus)
    assert value(of="prompt+generation") == pytest.approx(perplexity(nlls(["9 1 2", "8 6"], 5)).corpus)
    joined = perplexity(nlls(["3 4\n\n5\n\n7"], 5, starts=False)).corpus
    assert value(of="references", joined=True) == pytest.approx(joined)


def test_what_can_not_be_measured_is_said(model: str, tmp_path: Path) -> None:
    (part,) = parts([{"name": "perplexity", "model": model}], "metrics")
    with pytest.raises(RewardError, match=rf"stride=512, .* windows of {WINDOW} tokens"):
        MetricServer(part).compute([Sample("1 2 3")])
    t5 = str(make_tiny_model(tmp_path, architecture="t5"))
    with pytest.raises(InputError, match=r"encoder-decoder \(t5\)"):
        check_at_hand("metric", parts([{"name": "perplexity", "model": t5}], "metrics"))
    empty = Perplexity(model=model, stride=5).compute([Sample("1 2"), Sample("")])[KEY]
    assert empty.rows is None and empty.corpus > 1.0
