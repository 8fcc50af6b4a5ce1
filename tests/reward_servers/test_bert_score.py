"""BERTScore with a tiny encoder: the library's own numbers, whatever the batches."""

from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers import requirements
from reward_servers.graders.bert_score import BertScore
from reward_servers.part_checks import check_at_hand
from reward_servers.settings import parts
from tests.reward_servers.pairs import made
from tests.reward_servers.tiny_models import WORDS, make_encoder

library = pytest.importorskip("bert_score")

SAMPLES = [
    Sample("the cat sat", references=("a dog ran", "the cat ran")),
    Sample("a b c", references=("a b c",)),
    Sample("film " * 200, references=("good film .", "bad " * 300)),
    Sample("good </s> </s>", references=("bad",)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_encoder(tmp_path_factory.mktemp("encoder")))


def test_f1_is_the_librarys_against_the_best_reference(model: str) -> None:
    expected = library.score(
        [sample.text for sample in SAMPLES],
        [list(sample.references) for sample in SAMPLES],
        model_type=model,
        num_layers=1,
    )[2].tolist()
    assert BertScore(model=model, num_layers=1).score(SAMPLES) == pytest.approx(expected, abs=1e-6)
    value = BertScore(model=model, num_layers=1).compute(SAMPLES)["semantic/bert_score"]
    assert value.corpus == pytest.approx(sum(expected) / len(expected), abs=1e-6)


def test_f1_is_the_librarys_on_two_hundred_pairs(model: str) -> None:
    def spelt(text: str) -> str:  # in the tiny model's words
        return " ".join(WORDS[sum(map(ord, word)) % len(WORDS)] for word in text.split())

    samples = [
        Sample(spelt(sample.text), references=tuple(map(spelt, sample.references))) for sample in made()
    ]
    expected = library.score(
        [sample.text for sample in samples],
        [list(sample.references) for sample in samples],
        model_type=model,
        num_layers=2,
    )[2].tolist()
    assert len(samples) >= 200
    assert BertScore(model=model, num_layers=2).score(samples) == pytest.approx(expected, abs=1e-6)


def test_layers_differ_and_identical_texts_have_the_maximum(model: str) -> None:
    first, second = (BertScore(model=model, num_layers=depth).score(SAMPLES) for depth in (1, 2))
    assert abs(first[0] - second[0]) > 1e-5
    assert first[1] == pytest.approx(1.0, abs=1e-5) and max(first) <= 1.0 + 1e-5


def test_neither_batches_nor_order_change_a_score(model: str) -> None:
    together = BertScore(model=model, num_layers=2).score(SAMPLES)
    alone = BertScore(model=model, num_layers=2, tokens_per_batch=1).score(SAMPLES[::-1])[::-1]
    assert together == pytest.approx(alone, abs=1e-6)


def test_what_is_no_unicode_is_a_question_mark(model: str) -> None:
    reward = BertScore(model=model, num_layers=1)
    assert reward.score([Sample("the \ud800", references=("a cat",))]) == reward.score(
        [Sample("the ?", references=("a cat",))]
    )


def test_blank_texts_score_nothing(model: str) -> None:
    blank = [Sample("", references=("a",)), Sample(" ", references=(" ",)), Sample("a", references=("",))]
    assert BertScore(model=model, num_layers=1).score(blank) == [0.0, 0.0, 0.0]


def test_the_model_of_a_language_is_the_librarys() -> None:
    from bert_score.utils import lang2model

    from reward_servers.models.bert_score import model_for

    for language in ("en", "de", "zh", "tr", "en-sci", "fr"):
        assert model_for(language) == lang2model[language]


def test_what_can_not_be_compared_is_refused_before_the_run(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(**options: object) -> str:
        with pytest.raises(InputError) as refused:
            check_at_hand("reward", parts([{"name": "bert_score", **options}]))
        return str(refused.value)

    assert "expected num_layers=, 1 to 2" in refusal(model=model)
    assert "num_layers=3, but the model has 2" in refusal(model=model, num_layers=3)
    misleading = str(make_encoder(tmp_path / "flat5"))
    assert "expects a T5 model in every path with 't5'" in refusal(model=misleading, num_layers=1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "roberta-large" in refusal()
    monkeypatch.setattr(requirements, "package_folder", lambda name: None)
    assert "pip install bert-score" in refusal(model=model, num_layers=1)
