"""Rewards and metrics by sequence classifiers: tiny ones of every kind, on the CPU."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import build
from reward_servers.graders.bleurt import Bleurt
from reward_servers.graders.intent_accuracy import IntentAccuracy
from reward_servers.graders.learned_reward import LearnedReward
from reward_servers.models.checkpoint import read_config
from reward_servers.models.classifier import Classifier, classifier
from reward_servers.models.intent import utterance_pair
from reward_servers.part_checks import check_at_hand
from reward_servers.server import RewardServer
from reward_servers.settings import parts
from tests.reward_servers.tiny_models import WORDS, make_classifier

KINDS = ("bert", "roberta", "gpt2", "t5", "bart")
TEXTS = [
    "the cat sat",
    "",
    "a dog ran .",
    "film " * 200,
    "</s> </s>",
    "<pad>",
    "good",
    "unheard words",
    "no \ud800 text",
]
INTENTS = ("inform", "question", "directive", "commissive")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("classifiers")
    made = {kind: make_classifier(root / kind, kind=kind) for kind in KINDS}
    made |= {
        "one": make_classifier(root / "one", labels=("score",)),
        "intents": make_classifier(root / "intents", labels=INTENTS, seed=3),
        "albert": make_classifier(root / "albert", kind="albert"),
    }
    return {name: str(folder) for name, folder in made.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_neither_padding_nor_batches_nor_order_change_a_score(models: dict[str, str], kind: str) -> None:
    """Special tokens alone, nothing at all and a text of pages included."""
    alone = classifier(models[kind], tokens_per_batch=1).logits(TEXTS)
    together = classifier(models[kind]).logits(TEXTS)
    backwards = classifier(models[kind]).logits(TEXTS[::-1])
    assert together.isfinite().all() and together.std() > 0.01
    # relative to the largest logit: the kinds' logits differ in size
    assert (alone - together).abs().max() < 1e-5 * together.abs().max()
    assert (backwards.flip(0) - together).abs().max() < 1e-5 * together.abs().max()


def test_probabilities_are_transformers_own(models: dict[str, str]) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(models["roberta"]).eval()
    inputs = AutoTokenizer.from_pretrained(models["roberta"])("a cat the dog", return_tensors="pt")
    with torch.no_grad():
        expected = model(input_ids=inputs["input_ids"]).logits.softmax(-1)[0, 1].item()
    sample = Sample("the dog", prompt="a cat")
    assert LearnedReward(model=models["roberta"], label_ix=1).score([sample]) == [
        pytest.approx(expected, abs=1e-6)
    ]
    (value,) = LearnedReward(model=models["roberta"], label_ix=1).compute([sample, sample]).values()
    assert value.corpus == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["bart", "albert", "t5"])
def test_a_pairs_logits_are_transformers_own(models: dict[str, str], kind: str) -> None:
    """With separators between the texts, and the types by which ALBERT tells the texts apart."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(models[kind]).eval()
    tokenizer = AutoTokenizer.from_pretrained(models[kind])
    inputs = tokenizer("a cat", "the dog ran", return_tensors="pt", return_token_type_ids=kind == "albert")
    with torch.no_grad():
        expected = model(**inputs).logits
    logits = classifier(models[kind]).logits(["a cat", "good"], ["the dog ran", "bad </s> film"])
    assert logits[0].tolist() == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_labels_that_may_hold_together_have_a_sigmoid_each(models: dict[str, str], tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "many", labels=("toxic", "rude", "threat"))
    changed(folder, problem_type="multi_label_classification")
    judge = classifier(str(folder))
    logits = judge.logits(["the cat sat"])
    assert judge.probabilities(["the cat sat"]).tolist() == logits.sigmoid().tolist()
    assert classifier(models["roberta"]).probabilities(["the cat sat"]).sum().item() == pytest.approx(1.0)


def test_a_causal_classifier_reads_no_padding_whatever_its_config_says(tmp_path: Path) -> None:
    """The config pads with "the" (4), the tokenizer with </s>, which may also be a text's own end."""
    folder = changed(make_classifier(tmp_path / "gpt2", kind="gpt2"), pad_token_id=4)
    judge = classifier(str(folder))
    alone, together = judge.logits(["good"]), judge.logits(["good", "a dog ran . a cat sat ."])
    assert together[0].tolist() == pytest.approx(alone[0].tolist(), abs=1e-5)
    ended = "good</s>"
    lm, tokenizer = judge._transformer.lm, judge._transformer.tokenizer
    with torch.no_grad():
        expected = lm(**tokenizer(ended, return_tensors="pt")).logits[0]
    together = judge.logits([ended, "a dog ran . a cat sat ."])
    assert together[0].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_classifier_that_reads_the_last_position_is_refused(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path, kind="xlnet")
    with pytest.raises(InputError, match=r"kind xlnet, whose classifier reads the last position"):
        Classifier(str(folder))


def changed(folder: Path, **values: Any) -> Path:
    """A model's folder with other values in its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def test_the_prompt_counts_unless_left_out_and_the_end_of_a_long_text_is_kept(models: dict[str, str]) -> None:
    reward = LearnedReward(model=models["roberta"], label_ix=1)
    with_prompt, other_prompt = reward.score(
        [Sample("good", prompt="bad film"), Sample("good", prompt="cat")]
    )
    assert abs(with_prompt - other_prompt) > 1e-4
    without = LearnedReward(model=models["roberta"], label_ix=1, include_prompt=False)
    alike = without.score([Sample("good", prompt="bad film"), Sample("good", prompt="cat")])
    assert alike[0] == pytest.approx(alike[1], abs=1e-6)
    # 32 tokens are kept, two of them special: the same last thirty words score the same
    tail = " ".join(["the cat sat ."] * 8)
    beginnings = reward.score([Sample(tail, prompt="dog " * 100), Sample(tail, prompt="film " * 50)])
    assert beginnings[0] == pytest.approx(beginnings[1], abs=1e-6)
    (dog,), (film,) = (reward.score([Sample(word, prompt=tail)]) for word in ("dog", "film"))
    assert abs(dog - film) > 1e-4


def test_a_template_says_what_the_model_reads(models: dict[str, str]) -> None:
    meta = {"turns": ["the cat", "a dog", "good"], "topic": "film"}
    sample = Sample("the dog", prompt="bad", meta=meta)
    reward = LearnedReward(
        model=models["gpt2"],
        label_ix=1,
        template="{topic} {turns}{text} {unknown",
        turn_templates=("ran {turn} . ", "{turn} sat "),
    )
    read = "film ran the cat . a dog sat ran good . the dog {unknown"
    expected = classifier(models["gpt2"]).probabilities([read])[0, 1].item()
    assert reward.score([sample]) == [pytest.approx(expected, abs=1e-6)]


def test_prompt_and_text_are_put_together_with_a_blank_or_as_rl4lms_does(models: dict[str, str]) -> None:
    """A continuation may begin within a word, or with a comma: RL4LMs puts nothing between."""
    sample = Sample("t sat .", prompt="the ca")
    judge = classifier(models["bert"])
    for options, read in (({}, "the ca t sat ."), ({"template": "{prompt}{text}"}, "the cat sat .")):
        expected = judge.probabilities([read])[0, 1].item()
        reward = LearnedReward(model=models["bert"], label_ix=1, **options)
        assert reward.score([sample]) == [pytest.approx(expected, abs=1e-6)]


def test_a_pair_is_read_as_a_pair(models: dict[str, str]) -> None:
    sample = Sample("PersonX ran", meta={"knowledge": "the cat sat", "names": {"PersonX": "dog"}})
    reward = LearnedReward(model=models["bert"], label_ix=0, template="{knowledge}", second="a {named_text}")
    pair = classifier(models["bert"]).probabilities(["the cat sat"], ["a dog ran"])[0, 0].item()
    assert reward.score([sample]) == [pytest.approx(pair, abs=1e-6)]
    swapped = classifier(models["bert"]).probabilities(["a dog ran"], ["the cat sat"])[0, 0].item()
    assert abs(pair - swapped) > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{prompt}"}, "expected {text} in template or in second"),
        ({"second": "{text}"}, "need a template; got none"),
        ({"template": "{turns}{text}"}, "need each other"),
        ({"template": "{text}", "turn_templates": ["{turn}"]}, "need each other"),
        ({"template": "{turns}{text}", "turn_templates": ["a"]}, "expected {turn} in each"),
    ],
)
def test_templates_that_can_not_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(LearnedReward, {"model": "x", **options}, "reward")


def test_a_sample_that_lacks_what_the_template_needs_says_so(models: dict[str, str]) -> None:
    reward = LearnedReward(model=models["bert"], label_ix=0, template="{knowledge}", second="{text}")
    with pytest.raises(
        InputError, match=r"{knowledge} needs meta data 'knowledge', and this sample has: intent"
    ):
        reward.score([Sample("the dog", meta={"intent": 1})])


def test_one_label_gives_its_sigmoid_or_itself(models: dict[str, str]) -> None:
    sample = Sample("the cat sat")
    (logit,) = LearnedReward(model=models["one"], output="logit").score([sample])
    (probability,) = LearnedReward(model=models["one"]).score([sample])
    assert probability == pytest.approx(1 / (1 + math.exp(-logit)))
    assert probability != pytest.approx(1.0)  # as a softmax over one label would always be


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join), min_size=1, max_size=6))
def test_any_texts_have_probabilities_that_sum_to_one(models: dict[str, str], texts: list[str]) -> None:
    sums = classifier(models["bert"]).probabilities(texts).sum(dim=-1)
    assert (sums - 1).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"model": "roberta", "label_ix": 3},
            "label_ix=3, but the model has 2 labels: 0 negative, 1 positive",
        ),
        ({"model": "roberta"}, "label_ix is needed, as the model has 2 labels"),
        ({"model": "one", "label_ix": 1}, "the model has 1 label: 0 score"),
        ({"model": "/no/such/folder", "label_ix": 0}, "there is no such folder"),
    ],
)
def test_a_wrong_label_or_model_is_refused_before_the_run(
    models: dict[str, str], part: dict[str, object], message: str
) -> None:
    part = part | {"name": "learned_reward", "model": models.get(str(part["model"]), part["model"])}
    with pytest.raises(InputError, match=message):
        check_at_hand("reward", parts([part]))


def test_a_model_on_a_hub_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"reward=intent_accuracy: .*hub can't be reached.*model=FOLDER"):
        check_at_hand("reward", parts("intent_accuracy"))


def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path: Path, models: dict[str, str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"no config\.json; there is: notes\.txt"):
        read_config(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no weights"):
        read_config(str(tmp_path))


def test_a_language_model_without_a_classifiers_head_is_refused(tmp_path: Path) -> None:
    """transformers would fill in random numbers, and only warn."""
    from tests.models import make_tiny_model

    with pytest.raises(InputError, match=r"weights lack score\.weight.*random"):
        Classifier(str(make_tiny_model(tmp_path, architecture="gpt2")))


@pytest.mark.parametrize(
    ("join", "read"),
    [
        ("last_utterance", " good <EOU>the cat sat"),  # as RL4LMs' script trains the classifier
        ("last_utterance_unmarked", " good the cat sat"),  # as RL4LMs and OpenRL feed it
    ],
)
def test_intent_accuracy_is_whether_the_likeliest_label_is_asked_for(
    models: dict[str, str], join: Any, read: str
) -> None:
    texts = ["the cat sat", "a dog ran .", "good", "bad film", "ran dog", "b c d"]
    prompt = "the dog ran . <EOU> good <EOU>"
    pairs = [utterance_pair(prompt, text, join) for text in texts]
    assert pairs[0] == read
    labels = classifier(models["intents"]).logits(pairs).argmax(-1).tolist()
    right = [
        Sample(text, prompt, meta={"intent": label + 1}) for text, label in zip(texts, labels, strict=True)
    ]
    wrong = [
        Sample(text, prompt, meta={"intent": 4 - label}) for text, label in zip(texts, labels, strict=True)
    ]
    reward = IntentAccuracy(model=models["intents"], join=join)
    assert reward.score(right) == [1.0] * 6 and reward.score(wrong) == [0.0] * 6
    (value,) = IntentAccuracy(model=models["intents"], join=join).compute(right[:2] + wrong[2:]).values()
    assert value.corpus == pytest.approx(1 / 3)


def test_the_mark_between_utterance_and_answer_changes_what_the_classifier_says(
    models: dict[str, str],
) -> None:
    prompt, texts = "good <EOU>", ["the cat sat", "a dog ran ."]
    marked, bare = (
        classifier(models["intents"]).logits([utterance_pair(prompt, text, join) for text in texts])
        for join in ("last_utterance", "last_utterance_unmarked")
    )
    assert (marked - bare).abs().max() > 1e-3


def test_an_intent_or_a_classifier_that_is_none_is_refused(models: dict[str, str]) -> None:
    with pytest.raises(InputError, match="intent is 5; expected 1, 2, 3 or 4"):
        IntentAccuracy(model=models["intents"]).score([Sample("x", meta={"intent": 5})])
    with pytest.raises(InputError, match="has 2 labels: negative, positive; expected 4"):
        check_at_hand("reward", parts([{"name": "intent_accuracy", "model": models["roberta"]}]))


def test_intents_in_another_order_are_refused(tmp_path: Path) -> None:
    """In the alphabet's order, which words have without data.label_names."""
    for names, fault in ((sorted(INTENTS), True), (["1", "2", "3", "4"], False)):
        folder = make_classifier(tmp_path / names[0], labels=names)
        part = parts([{"name": "intent_accuracy", "model": str(folder)}])
        if not fault:
            check_at_hand("reward", part)
            continue
        with pytest.raises(InputError, match=r"data\.label_names=\[inform,question,directive,commissive\]"):
            check_at_hand("reward", part)


def test_a_sample_without_an_intent_costs_itself_alone(models: dict[str, str]) -> None:
    (part,) = parts([{"name": "intent_accuracy", "model": models["intents"]}])
    first, second = RewardServer(part).score([Sample("x", meta={"intent": 1}), Sample("y")])
    assert first[1] is None
    assert second[0] is None and "intent" in str(second[1])


def test_bleurt_is_the_models_number_for_the_best_reference(models: dict[str, str]) -> None:
    logits = classifier(models["one"]).logits(["a cat", "the dog ran"], ["the cat", "the cat"])[:, 0].tolist()
    sample = Sample("the cat", references=("a cat", "the dog ran"))
    assert Bleurt(model=models["one"]).score([sample]) == [pytest.approx(max(logits), abs=1e-5)]
    printed = classifier(models["one"]).logits(["['a cat', 'the dog ran']"], ["the cat"])[0, 0].item()
    theirs = Bleurt(model=models["one"], references="printed")
    assert theirs.score([sample]) == [pytest.approx(printed, abs=1e-5)]
    with pytest.raises(InputError, match="BLEURT is one number"):
        check_at_hand("reward", parts([{"name": "bleurt", "model": models["roberta"]}]))


def test_of_a_pair_both_keep_some_of_their_text(models: dict[str, str]) -> None:
    judge = classifier(models["roberta"], None, "begin")
    long = "film " * 500
    values = judge.logits([long, long, "cat " + long, long], [long, "good", long, "good dog"])
    assert values.isfinite().all()
    assert (values[1] - values[3]).abs().max() > 1e-5  # the second text is still read
    assert (values[0] - values[2]).abs().max() > 1e-5  # and so is the first


@pytest.mark.parametrize(("keep", "first_kept"), [("begin", "the"), ("end", "cat")])
def test_of_a_pair_the_second_text_keeps_what_the_first_leaves(
    models: dict[str, str], keep: str, first_kept: str
) -> None:
    """Three of 32 tokens are marks: a first text of 2 leaves 27, whose beginning or end is kept."""
    judge = classifier(models["roberta"], None, keep)
    rows = judge._transformer.encode(["a dog"] * 2, ["the " * 26 + "cat", "the " * 27 + "cat " * 27])
    vocabulary = judge._transformer.tokenizer.convert_ids_to_tokens
    whole, cut = (vocabulary(row["input_ids"])[4:-1] for row in rows)
    assert whole == ["the"] * 26 + ["cat"]
    assert cut == [first_kept] * 27
