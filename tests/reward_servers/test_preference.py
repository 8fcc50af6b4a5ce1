"""P(good) by models that answer "good" or "bad", and by reward models; the penalty for missing concepts."""

import math
from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.learned_reward import LearnedReward
from reward_servers.graders.preference_model import PreferenceModel
from reward_servers.models.preference import AnswersGoodOrBad
from reward_servers.part_checks import check_at_hand
from reward_servers.settings import parts
from tests.models import make_tiny_model
from tests.reward_servers.tiny_models import make_classifier

VOCAB = ("good", "bad", "the", "cat", "sat", "?")
TEXTS = ["the cat sat", "", "cat", "the " * 300, "<eos> <pad>", "\ud800"]


@pytest.fixture(scope="module", params=["t5", "bart", "gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    return str(make_tiny_model(folder, architecture=request.param, vocab=VOCAB, sharpness=8.0))


def test_it_is_the_softmax_of_the_two_first_logits(model: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = torch.tensor([tokenizer("the cat sat")["input_ids"]])
    config = AutoConfig.from_pretrained(model)
    with torch.no_grad():
        if config.is_encoder_decoder:
            start = torch.tensor([[config.decoder_start_token_id]])
            lm = AutoModelForSeq2SeqLM.from_pretrained(model).eval()
            logits = lm(input_ids=tokens, decoder_input_ids=start).logits[0, 0]
        else:
            logits = AutoModelForCausalLM.from_pretrained(model).eval()(input_ids=tokens).logits[0, -1]
    good, bad = logits[tokenizer("good")["input_ids"][0]], logits[tokenizer("bad")["input_ids"][0]]
    expected = math.exp(good) / (math.exp(good) + math.exp(bad))
    (score,) = PreferenceModel(model=model).score([Sample("the cat sat")])
    assert score == pytest.approx(expected, abs=1e-5)
    assert abs(score - 0.5) > 1e-4


def test_neither_padding_nor_batches_change_a_score(model: str) -> None:
    samples = [Sample(text) for text in TEXTS]
    together = PreferenceModel(model=model).score(samples)
    alone = PreferenceModel(model=model, tokens_per_batch=1).score(samples)
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(0.0 <= value <= 1.0 for value in together)


def test_good_and_bad_swapped_give_the_rest_to_one(model: str) -> None:
    sample = Sample("cat sat")
    (good,) = PreferenceModel(model=model).score([sample])
    (bad,) = PreferenceModel(model=model, good="bad", bad="good").score([sample])
    assert good + bad == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(InputError, match="same token"):
        AnswersGoodOrBad(model, "t5" in model or "bart" in model, "good", "good", 100)


def test_logits_beyond_exp_do_not_overflow(tmp_path: Path) -> None:
    """RL4LMs divides exponentials, which is nan here: the sigmoid of the difference is 0 or 1."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path, architecture="gpt2", vocab=VOCAB)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    lm.transformer.ln_f.bias.data.fill_(1.0)
    embedding = lm.transformer.wte.weight.data
    embedding[3], embedding[4] = torch.full((64,), 100.0), torch.full((64,), 50.0)  # "good", "bad"
    lm.save_pretrained(folder)
    assert PreferenceModel(model=str(folder)).score([Sample("the")]) == [pytest.approx(1.0)]


def test_each_missing_concept_divides(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path, architecture="t5", vocab=VOCAB))
    meta = {"concepts": ["Cat", "dog", "ball"]}
    (plain,) = PreferenceModel(model=model).score([Sample("the cat sat", meta=meta)])
    (less,) = PreferenceModel(model=model, concept_penalty_coeff=0.5).score(
        [Sample("the cat sat", meta=meta)]
    )
    assert less == pytest.approx(plain / (1 + 0.5 * 2))  # dog and ball
    with pytest.raises(InputError, match="meta data's concepts"):
        PreferenceModel(model=model, concept_penalty_coeff=0.5).score([Sample("the cat")])


def test_a_template_says_what_the_model_reads(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path, architecture="llama", vocab=VOCAB, sharpness=8.0))
    scores = PreferenceModel(model=model, template="{prompt} {text} ?").score(
        [Sample("sat", prompt="the cat")]
    )
    assert scores == pytest.approx(PreferenceModel(model=model).score([Sample("the cat sat ?")]))
    with pytest.raises(InputError, match=r"expected \{text\} in it"):
        check_at_hand("reward", parts([{"name": "preference_model", "model": model, "template": "good?"}]))


def test_a_reward_model_with_one_label_is_its_sigmoid(tmp_path: Path) -> None:
    one = str(make_classifier(tmp_path / "one", labels=("score",)))
    samples = [Sample("the cat"), Sample("a dog ran")]
    assert PreferenceModel(model=one).score(samples) == LearnedReward(model=one).score(samples)
    two = str(make_classifier(tmp_path / "two"))
    with pytest.raises(InputError, match=r"2 labels.*learned_reward"):
        check_at_hand("reward", parts([{"name": "preference_model", "model": two}]))
