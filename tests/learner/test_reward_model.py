"""Reward models: their losses in numbers, no dependence on padding and splits, and that they learn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError, LearnerError
from learner.reward_models.batches import Example, micro_batches
from learner.reward_models.losses import balanced_weights, bradley_terry, cross_entropy
from learner.reward_models.measures import calibration_error, label_measures, pair_measures
from learner.reward_models.model import RewardModel
from learner.reward_models.settings import RewardTraining
from learner.reward_models.training import RewardTrainer
from tests.learner.rewards import CAUSAL_OR_SEQ2SEQ, labelled, load, make_any, make_bert, pairs, toy_texts

EVERY = ("bert", *CAUSAL_OR_SEQ2SEQ)
TOY: dict[str, Any] = {"learning_rate": 3e-3, "batch_size": 16, "num_epochs": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_any(tmp_path_factory.mktemp(name), name) for name in EVERY}


def trained(folder: Path, *, pairwise: bool = False, **changes: Any) -> tuple[RewardModel, list[Example]]:
    """A model after its epochs over 160 toy examples, and 80 others."""
    settings = RewardTraining(**(TOY | changes))
    model = RewardModel(str(folder), ("reward",) if pairwise else ("low", "high"), settings)
    make = pairs if pairwise else labelled
    trainer = RewardTrainer(model, make(model, 160), settings)
    for number in range(1, settings.num_epochs + 1):
        trainer.epoch(number)
    return model, make(model, 80, seed=1)


# Losses and measures


def test_bradley_terry_by_hand() -> None:
    # rewards 1 and -1, 0.5 to be apart: log(1 + e^-1.5) = log(1.2231) = 0.2014
    # rewards 2 and 1: log(1 + e^-1) = log(1.3679) = 0.3133
    chosen, rejected, margins = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [0.5, 0.0]])
    plain = bradley_terry(chosen, rejected, divisor=2, margins_B=margins)
    assert float(plain) == pytest.approx((0.20141 + 0.31326) / 2, abs=1e-5)
    # centred: 0.1 · ((1 - 1)² + (2 + 1)²) / 2 more
    centred = bradley_terry(chosen, rejected, divisor=2, margins_B=margins, centering=0.1)
    assert float(centred - plain) == pytest.approx(0.45, abs=1e-6)


def test_bradley_terry_survives_rewards_that_are_far_apart() -> None:
    far = torch.tensor([1e4])
    assert float(bradley_terry(far, -far, divisor=1)) == 0.0
    assert float(bradley_terry(-far, far, divisor=1)) == 2e4


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 1)), min_size=2, max_size=8),
    st.integers(1, 7),
)
def test_a_batchs_loss_is_the_sum_of_its_parts(rows: list[tuple[float, float, int]], cut: int) -> None:
    logits, labels = torch.tensor([row[:2] for row in rows]), torch.tensor([row[2] for row in rows])
    weights = torch.tensor([0.5, 2.0])
    divisor = float(weights[labels].sum())
    parts = [slice(None, cut), slice(cut, None)]
    whole = cross_entropy(logits, labels, divisor=divisor, weights_K=weights)
    split = sum(
        cross_entropy(logits[part], labels[part], divisor=divisor, weights_K=weights) for part in parts
    )
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(whole, torch.nn.functional.cross_entropy(logits, labels, weights))
    whole = bradley_terry(logits[:, 0], logits[:, 1], divisor=len(rows), centering=0.1)
    split = sum(bradley_terry(logits[p, 0], logits[p, 1], divisor=len(rows), centering=0.1) for p in parts)
    torch.testing.assert_close(split, whole)


def test_measures_of_labels_are_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    measures = label_measures(logits, labels, "abcd")
    predicted = logits.argmax(-1)
    expected = sklearn.precision_recall_fscore_support(labels, predicted, labels=range(4), zero_division=0)
    rows = [
        [row[key] for key in ("precision", "recall", "f1", "support")] for row in measures["labels"].values()
    ]
    np.testing.assert_allclose(np.array(rows).T, expected)
    assert measures["accuracy"] == pytest.approx(sklearn.accuracy_score(labels, predicted))
    assert measures["confusion"] == sklearn.confusion_matrix(labels, predicted, labels=range(4)).tolist()
    assert measures["loss"] == pytest.approx(
        sklearn.log_loss(labels, logits.softmax(-1), labels=range(4)), rel=1e-5
    )
    assert measures["majority"] == 67 / 200  # labels 0, 1, 2 in turns: 67, 67, 66


def test_balanced_weights_are_scikit_learns() -> None:
    class_weight = pytest.importorskip("sklearn.utils.class_weight")
    labels = torch.tensor([0, 0, 0, 2, 1, 2, 0])
    expected = class_weight.compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    np.testing.assert_allclose(balanced_weights(labels, 3), expected, rtol=1e-6)
    assert balanced_weights(torch.tensor([0, 2]), 3)[1] == 0


def test_calibration_by_hand() -> None:
    # 0.9, 0.9 (one right): |1 - 1.8| = 0.8; 0.6 (right): 0.4; 1.0 (right): 0. Together 1.2 of 4.
    confidence, correct = torch.tensor([0.9, 0.9, 0.6, 1.0]), torch.tensor([True, False, True, True])
    assert calibration_error(confidence, correct) == pytest.approx(1.2 / 4)


def test_measures_of_pairs_by_hand() -> None:
    measures = pair_measures(torch.tensor([[2.0, 1.0], [0.0, 1.0], [1.0, 1.0], [3.0, 1.0]]))
    assert (measures["accuracy"], measures["ties"], measures["margin"]) == (0.5, 1, 0.5)
    losses = [math.log1p(math.exp(-apart)) for apart in (1, -1, 0, 2)]
    assert measures["loss"] == pytest.approx(sum(losses) / 4)


# Batches


def test_a_pair_stays_together_and_the_budget_counts_padding() -> None:
    examples = [
        Example(((5, 6), (5,)), 0.0),
        Example(((7,), (8, 9, 10, 11)), 1.0),
        Example(((8,), (9,)), 2.0),
    ]
    batches = list(micro_batches(examples, 8, filler=0))
    assert [batch.places for batch in batches] == [(1,), (0, 2)]
    assert batches[1].tokens_NL.tolist() == [[5, 6], [5, 0], [8, 0], [9, 0]]
    assert batches[1].mask_NL.tolist() == [[1, 1], [1, 0], [1, 0], [1, 0]]
    assert batches[1].targets_B.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("pairwise", [False, True])
def test_splits_and_padding_change_neither_loss_nor_gradient(
    folders: dict[str, Path], name: str, pairwise: bool
) -> None:
    passes = []
    for budget in (1, 40, 10_000):
        settings = RewardTraining(**TOY, token_budget=budget, class_weights="balanced", centering=0.1)
        model = load(folders[name], ("reward",) if pairwise else ("low", "high"), token_budget=budget)
        switch_dropout_off(model)
        batch = pairs(model, 6) if pairwise else labelled(model, 13)
        trainer = RewardTrainer(model, batch, settings)
        loss = trainer.accumulate(batch)
        passes.append((loss, {name: p.grad for name, p in model.lm.named_parameters() if p.grad is not None}))
    for loss, gradients in passes[1:]:
        assert loss == pytest.approx(passes[0][0], rel=1e-5)
        assert gradients.keys() == passes[0][1].keys()
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, passes[0][1][key], rtol=1e-3, atol=1e-5)


def switch_dropout_off(model: RewardModel) -> None:
    for module in model.lm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "dropout_rate", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


@pytest.mark.parametrize("name", EVERY)
def test_a_score_is_that_of_the_text_alone(folders: dict[str, Path], name: str) -> None:
    model = load(folders[name], token_budget=60)
    examples = labelled(model, 20)
    scores = model.scores(examples)
    with torch.inference_mode():
        alone = [model.lm(input_ids=torch.tensor([e.sequences[0]])).logits[0] for e in examples]
    torch.testing.assert_close(scores, torch.stack(alone), rtol=1e-4, atol=1e-5)
    backwards = model.scores(examples[::-1]).flip(0)
    torch.testing.assert_close(backwards, scores, rtol=1e-4, atol=1e-5)


# Learning


@pytest.mark.parametrize("name", EVERY)
def test_it_learns_labels_and_is_the_same_from_its_folder(
    folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    model, held_out = trained(folders[name])
    scores = model.scores(held_out)
    measures = label_measures(scores, torch.tensor([int(e.target) for e in held_out]), ("low", "high"))
    assert measures["accuracy"] > 0.9

    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model.save(tmp_path)
    lm, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and lm.config.id2label == {0: "low", 1: "high"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = [text for text, _ in toy_texts(80, seed=1)]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        again = lm.eval()(**inputs).logits
    torch.testing.assert_close(again, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_it_learns_preferences(folders: dict[str, Path], name: str) -> None:
    model, held_out = trained(folders[name], pairwise=True)
    assert pair_measures(model.scores(held_out))["accuracy"] > 0.9


def test_it_learns_in_bfloat16_with_checkpoints_and_weights(folders: dict[str, Path]) -> None:
    model, held_out = trained(
        folders["llama"], autocast="bfloat16", gradient_checkpointing=True, class_weights="balanced"
    )
    scores = model.scores(held_out)
    assert scores.dtype == torch.float32
    measures = label_measures(scores, torch.tensor([int(e.target) for e in held_out]), ("low", "high"))
    assert measures["accuracy"] > 0.9


def test_a_seed_repeats_a_training_exactly(tmp_path: Path) -> None:
    folder = make_bert(tmp_path, hidden_dropout_prob=0.1)
    first, second, other = (trained(folder, num_epochs=1, seed=seed)[0].lm for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_centering_keeps_rewards_about_zero(folders: dict[str, Path]) -> None:
    def mean_sum(centering: float) -> float:
        model, held_out = trained(folders["bert"], pairwise=True, centering=centering)
        return float(model.scores(held_out).sum(-1).square().mean())

    assert mean_sum(1.0) < 0.5 * mean_sum(0.0)


def test_every_weight_is_trained_once_and_the_head_has_its_own_rate(folders: dict[str, Path]) -> None:
    settings = RewardTraining(**TOY, head_learning_rate=0.5)
    model = load(folders["gpt2"])
    trainer = RewardTrainer(model, labelled(model, 4), settings)
    groups = trainer._optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(model.lm.parameters()))
    fast = [parameter for group in groups if group["base_lr"] == 0.5 for parameter in group["params"]]
    assert [parameter.shape for parameter in fast] == [model.lm.score.weight.shape]


def test_the_rate_warms_up_and_falls(folders: dict[str, Path]) -> None:
    settings = RewardTraining(
        **(TOY | {"learning_rate": 1.0, "num_epochs": 1, "batch_size": 1}), warmup_share=0.5
    )
    model = load(folders["bert"])
    trainer = RewardTrainer(model, labelled(model, 4), settings)
    rates = []
    trainer._optimizer.step = lambda: rates.append(trainer._optimizer.param_groups[0]["lr"])  # type: ignore[assignment,method-assign]
    trainer.epoch(1)
    assert rates == [0.5, 1.0, 1.0, 0.5]  # two steps up, then 1 - 0/2 and 1 - 1/2


def test_an_infinite_gradient_stops_it_before_the_weights_change(folders: dict[str, Path]) -> None:
    model = load(folders["gpt2"])
    examples = labelled(model, 4)
    with torch.no_grad():
        model.lm.score.weight.fill_(math.inf)
    before = [parameter.clone() for parameter in model.lm.parameters()]
    with pytest.raises(
        LearnerError, match=r"step 1: the gradient is not finite \(norm nan\).*learning_rate="
    ):
        RewardTrainer(model, examples, RewardTraining(**TOY)).epoch(1)
    assert all(map(torch.equal, before, model.lm.parameters()))


# Texts


def test_the_end_of_a_long_text_is_kept(folders: dict[str, Path]) -> None:
    model = load(folders["gpt2"], max_length=3)
    # ids are 3 more than the numbers: <pad>, <eos> and <unk> come first
    assert model.encode(["1 2 3 4 5", "7 8", ""]) == ([(6, 7, 8), (10, 11), (0,)], 1)
    model = load(folders["bert"], max_length=3)
    assert model.encode(["1 2 3 4 5"]) == ([(7, 8, 1)], 1)  # the mark that its tokenizer adds stays


def test_the_saved_tokenizer_cuts_as_training_did(folders: dict[str, Path], tmp_path: Path) -> None:
    load(folders["gpt2"], max_length=3).save(tmp_path)
    again = load(tmp_path)
    assert again.max_length == 3
    assert again.encode(["1 2 3 4 5"]) == ([(6, 7, 8)], 1)


def test_a_tokenizer_without_padding_gets_one(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm = AutoModelForCausalLM.from_pretrained(folders["llama"])
    lm.config.pad_token_id = None
    lm.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folders["llama"])
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.filler == model.lm.config.pad_token_id == 1  # <eos>
    examples = labelled(model, 8)
    one_by_one = torch.cat([model.scores([example]) for example in examples])
    torch.testing.assert_close(model.scores(examples), one_by_one, rtol=1e-4, atol=1e-5)


def test_a_head_of_other_labels_is_made_anew_and_said(folders: dict[str, Path], tmp_path: Path) -> None:
    load(folders["bert"]).save(tmp_path)
    assert load(tmp_path).fresh == []
    assert load(tmp_path, ("a", "b", "c")).fresh == ["classifier.bias", "classifier.weight"]


def test_an_end_mark_inside_a_text_is_refused_by_an_encoder_decoder(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"has 2 end marks \(token 1\).*'1 <eos> 2'"):
        load(folders["t5"]).encode(["3", "1 <eos> 2"])


def test_a_window_and_a_model_that_do_not_fit_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"max_length=65, but model=.* takes 64 tokens"):
        load(folders["bert"], max_length=65)
    with pytest.raises(InputError, match="does not load as a classifier"):
        load(tmp_path)


def test_a_classifier_that_reads_the_last_position_is_refused(tmp_path: Path) -> None:
    from transformers import XLNetConfig, XLNetLMHeadModel

    make_bert(tmp_path)  # its tokenizer stays
    XLNetLMHeadModel(
        XLNetConfig(vocab_size=103, d_model=32, n_layer=1, n_head=2, d_inner=32)
    ).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"^model=.* kind xlnet, whose classifier reads the last position"):
        load(tmp_path)
