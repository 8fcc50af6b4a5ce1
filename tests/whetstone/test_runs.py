"""A run's files as tables, also while they are being written."""

import json
from pathlib import Path

import pytest

import whetstone
from services.runs.folder import INFO_FILES, RunFolder
from tests.models import make_tiny_model
from tests.reward_servers import graders
from whetstone.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two iterations, the second one not yet learned from; evaluations of both splits; one line cut short."""
    folder = RunFolder.open(tmp_path, "run", {"seed": 0}, "auto")
    folder.append_evaluation(0, "validation", {"reward/mean": 0.25})
    folder.append_evaluation(0, "test", {"reward/mean": 0.5})
    folder.append_rollout_info(1, {"reward/mean": 0.1 + 0.2, "kl/mean": None})
    folder.append_training_info(1, {"loss/policy": -1.0})
    folder.append_rollout_info(2, {"reward/mean": 0.5})
    with (folder.path / INFO_FILES[1]).open("a") as file:
        file.write('{"iteration": 2, "loss')
    for epoch in (10, 0):
        folder.write_predictions(epoch, "validation", [{"split_name": "val", "generated_text": f"{epoch}"}])
    folder.write_predictions(0, "test", [{"split_name": "test", "generated_text": "t"}])
    return folder


def test_metrics_have_a_row_an_iteration(folder: RunFolder) -> None:
    metrics = whetstone.load_run(folder.path).metrics
    assert list(metrics.index) == [1, 2] and metrics.index.name == "iteration"
    assert list(metrics["reward/mean"]) == [0.1 + 0.2, 0.5]  # to the bit
    assert metrics["loss/policy"][1] == -1.0 and metrics["loss/policy"].isna()[2]


def test_evaluations_and_samples_name_split_and_epoch(folder: RunFolder) -> None:
    run = whetstone.load_run(str(folder.path))
    assert run.evaluations.values.tolist() == [["validation", 0, 0.25], ["test", 0, 0.5]]
    assert run.samples.values.tolist() == [["validation", 0, "0"], ["test", 0, "t"], ["validation", 10, "10"]]


def test_a_run_that_has_just_begun_has_empty_tables(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "new", {"seed": 0}, "auto")
    run = whetstone.load_run(folder.path)
    assert (len(run.metrics), len(run.evaluations), len(run.samples)) == (0, 0, 0)


@pytest.mark.parametrize(("name", "why"), [("nowhere", "no such folder"), (".", "has no config.yaml")])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        whetstone.load_run(tmp_path / name)


def test_texts_and_rows_are_scored(folder: RunFolder) -> None:
    def vowels(samples: list) -> list[float]:  # type: ignore[type-arg]
        return [float(sum(letter in "aeiou" for letter in sample.text)) for sample in samples]

    rows = [{"prediction": "a b", "references": ["a b"]}, {"prediction": "a a c", "references": ["b"]}]
    graded = whetstone.score([vowels, "length", "exact_match"], rows)
    assert graded.metrics == {"vowels": 1.5, "length/mean_words": 2.5, "lexical/exact_match": 0.5}
    assert list(graded.samples["vowels"]) == [1.0, 2.0]

    graded = whetstone.score({"name": "length", "target": 2}, ["a b", "a b c"], as_rewards=True)
    assert list(graded.samples["length"]) == [1.0, 0.5]  # 2 of 2; 1 - 1/2


def test_samples_of_a_run_are_scored_with_their_references() -> None:
    row = {"generated_text": "a b", "prompt_text": "p", "ref_text": "<START-1>a b<END-1><START-2>c<END-2>"}
    from pandas import DataFrame

    graded = whetstone.score("exact_match", DataFrame([row]))
    assert graded.metrics == {"lexical/exact_match": 1.0}
    assert json.loads(graded.samples.to_json(orient="records"))[0]["references"] == ["a b", "c"]


def test_graders_of_one_name_need_labels_which_classes_and_metrics_have_too() -> None:
    def first(samples: list) -> list[float]:  # type: ignore[type-arg]
        return [1.0 for _ in samples]

    words = {"name": graders.Words, "label": "more", "factor": 2.0}
    graded = whetstone.score([first, graders.Words, words, {"name": "length", "label": "own"}], ["a b"])
    assert graded.metrics == {"first": 1.0, "Words": 2.0, "more": 4.0, "own/length/mean_words": 2.0}

    with pytest.raises(
        InputError, match=r"two of them give 'first'; .* \{\"name\": …, \"label\": \"first2\"\}"
    ):
        whetstone.score([first, first], ["a b"])


def test_texts_may_have_any_line_separators(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    (tmp_path / "config.yaml").write_text("rollout: {max_tokens: 2}\n")
    prompts = ["3\u20285", "3\u20295", "3\x855"]
    assert len(whetstone.load_run(tmp_path).generate(prompts, engine="transformers")) == 3
