"""`whetstone train-reward` from rows to a folder that the reward servers take, and what it refuses."""

import csv
import json
import math
import os
import re
import shlex
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.learned_reward import LearnedReward
from reward_servers.settings import parts
from services.cli import main
from services.commands.train_reward import run
from services.config.compose import choices_of, compose
from services.training.reward_training.data import RewardData, RewardRow, label_places, read_split
from services.training.reward_training.results import RewardResults
from services.training.reward_training.settings import GROUP, TrainRewardSettings, settings_from
from tests.learner.rewards import make_bert, toy_texts
from tests.models import make_tiny_model

TOY = ("learning_rate=3e-3", "batch_size=16", "num_epochs=3", "device=cpu")
WORDS = ("low", "high")
MODEL = "model.path=some/model"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert(tmp_path_factory.mktemp("bert"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled_files(folder: Path, num: int = 128) -> Path:
    for seed, split in enumerate(("train", "validation", "test")):
        rows = [{"text": text, "label": label} for text, label in toy_texts(num if seed == 0 else 40, seed)]
        write(folder / f"{split}.jsonl", rows)
    return folder


def pair_rows(num: int) -> list[dict[str, Any]]:
    """As hh-rlhf has them: both texts begin with the same question."""
    texts = toy_texts(2 * num)
    return [
        {"chosen": f"7 7 {texts[place + 1][0]}", "rejected": f"7 7 {texts[place][0]}"}
        for place in range(0, 2 * num, 2)
    ]


def results(folder: Path) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return measured


def refusal(*argv: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        run([str(word) for word in argv])
    return str(caught.value)


# Training


def test_a_classifier_is_trained_and_is_the_reward_that_was_measured(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, output = labelled_files(tmp_path), tmp_path / "out"
    argv = [f"model={bert}", f"data.files={files}", f"output={output}", "data.label_names=[low,high]", *TOY]
    assert run(argv) == 0
    printed, measured = capsys.readouterr().out, results(output)
    assert measured["finished"] and measured["labels"] == ["low", "high"]
    assert measured["test"]["accuracy"] > 0.9 and measured["rows"]["train"] == {
        "examples": 128,
        "cut": 0,
        "skipped": {},
    }
    assert [row["epoch"] for row in measured["epochs"]] == [1, 2, 3]
    assert "epoch 3/3" in printed and "begins with random numbers: " in printed
    assert (output / "report.txt").read_text() in printed
    assert "0 low · 1 high" in printed
    assert f"reward=learned_reward reward.model={output}/model reward.label_ix=1" in printed
    assert measured["command"] in printed

    reward = LearnedReward(model=str(output / "model"), label_ix=1)
    reward.check()
    texts = toy_texts(40, seed=2)
    scores = reward.score([Sample(text) for text, _ in texts])
    right = sum((score > 0.5) == bool(label) for score, (_, label) in zip(scores, texts, strict=True))
    assert right / 40 == measured["test"]["accuracy"]


def test_pairs_become_a_single_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(tmp_path / "gpt2", architecture="gpt2")
    rows = pair_rows(200)
    rows[3]["rejected"] = rows[3]["chosen"]
    rows[4] = {"chosen": "7 unknown", "rejected": "7 words"}  # two texts, one row of tokens
    file, output = write(tmp_path / "pairs.jsonl", rows), tmp_path / "out"
    assert run([f"model={model}", f"data.files={file}", f"output={output}", *TOY]) == 0
    printed, measured = capsys.readouterr().out, results(output)
    assert measured["objective"] == "pairs" and measured["test"]["accuracy"] > 0.9
    # of each ten rows the ninth is validation, the tenth test
    assert measured["rows"]["train"]["examples"] == 158 and measured["rows"]["test"]["examples"] == 20
    assert measured["rows"]["train"]["skipped"] == {"chosen = rejected": 1, "the same to the model": 1}
    assert "warning: left out: 1 (chosen = rejected), 1 (the same to the model)" in printed
    assert f"TASK reward=learned_reward reward.model={output}/model\n" in printed
    # a single label needs no index, and its value is not squeezed
    reward = LearnedReward(model=str(output / "model"), output="logit")
    reward.check()
    good, bad = reward.score([Sample(rows[0]["chosen"]), Sample(rows[0]["rejected"])])
    assert good > bad
    text = rows[0]["chosen"].removeprefix("7 7")
    settings = parts(compose([MODEL, *shlex.split(measured["command"])[4:]])["reward"], "reward")[0].options
    served = LearnedReward(**settings)
    served.check()
    # prompt and text are joined as in training, where a prompt of its own stood before the response
    for behind in (text, text.strip()):
        assert served.score([Sample(behind, prompt="7 7")]) == [pytest.approx(1 / (1 + math.exp(-good)))]


def test_the_intent_classifier_reads_what_its_reward_reads(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def dialogue(place: int) -> dict[str, Any]:
        acts = [place % 4 + 1, (place + 1) % 4 + 1, (place + 2) % 4 + 1]
        utterances = [f" {24 * act} {24 * act + place % 9} " for act in acts]
        return {"dialog": utterances, "act": acts, "emotion": [0, 0, 0]}

    files = tmp_path / "dialogues"
    files.mkdir()
    for split in ("train", "validation", "test"):
        write(files / f"{split}.jsonl", [dialogue(place) for place in range(40)])
    output = tmp_path / "out"
    preset = ["preset=daily_dialog_intent", f"model={bert}", f"task.data_files={files}"]
    argv = [*preset, f"output={output}", "learning_rate=3e-3", "num_epochs=6", "batch_size=16"]
    assert run(argv) == 0
    measured = results(output)
    assert measured["labels"] == ["inform", "question", "directive", "commissive"]
    assert measured["rows"]["train"]["examples"] == 80  # two answers a dialogue
    assert measured["test"]["accuracy"] > 0.9
    served = f"reward=intent_accuracy reward.model={output}/model reward.join=last_utterance"
    assert served in capsys.readouterr().out

    from reward_servers.graders.intent_accuracy import IntentAccuracy

    reward = IntentAccuracy(model=str(output / "model"))
    reward.check()
    sample = Sample(" 48 50 <EOU>", prompt="96 <EOU> 24 25 <EOU>", meta={"intent": 2})
    assert reward.score([sample]) == [1.0]
    settings = settings_from(preset)
    row = next(iter(read_split(settings.data, settings.task, None, "train").rows))
    assert row == RewardRow(("24 24 <EOU> 48 48 <EOU>",), label=2)
    # for a run that feeds its classifier as RL4LMs and OpenRL do
    settings = settings_from([*preset, "data.join=last_utterance_unmarked"])
    row = next(iter(read_split(settings.data, settings.task, None, "train").rows))
    assert row == RewardRow(("24 24  48 48 <EOU>",), label=2)


def test_the_intent_presets_numbers_are_the_published_ones() -> None:
    settings = settings_from(["preset=daily_dialog_intent"])
    assert settings.model == "cardiffnlp/twitter-roberta-base-emotion"
    assert (settings.num_epochs, settings.learning_rate, settings.batch_size) == (10, 1e-6, 8)
    assert (settings.lr_schedule, settings.warmup_share, settings.task.context_size) == ("constant", 0, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", choices_of(GROUP))
def test_every_preset_is_valid(name: str) -> None:
    extra = [] if "intent" in name else ["model=x", "data.files=x"]
    assert settings_from([f"preset={name}", *extra]).num_epochs >= 1


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_of_other_kinds_and_labels_in_words(bert: Path, tmp_path: Path, kind: str) -> None:
    rows = [
        {"question": f"1 {place}", "answer": text, "verdict": WORDS[label]}
        for place, (text, label) in enumerate(toy_texts(60))
    ]
    file = tmp_path / f"rows.{kind}"
    if kind == "csv":
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pandas

        pandas.DataFrame(rows).to_parquet(file)
    columns = ["data.prompt=question", "data.response=answer", "data.label=verdict"]
    output = tmp_path / "out"
    argv = [f"model={bert}", f"data.files={file}", f"output={output}", *columns, *TOY, "num_epochs=1"]
    assert run(argv) == 0
    assert results(output)["labels"] == ["high", "low"]  # the alphabet's order
    settings = settings_from(argv)
    first = read_split(settings.data, None, None, "train").rows[0]
    assert first == RewardRow((f"1 0 {rows[0]['answer']}",), label="low")


# The best epoch, and interruptions


def epochs(tmp_path: Path, best_by: str, *measured: tuple[float, float]) -> int:
    kept = RewardResults(tmp_path, {}, WORDS)
    for number, (accuracy, loss) in enumerate(measured, start=1):
        kept.add_epoch(number, {"loss": 1.0}, {"accuracy": accuracy, "loss": loss}, best_by)
    return kept.best_epoch


def test_the_best_epoch_is_the_most_accurate_then_the_surest_then_the_first(tmp_path: Path) -> None:
    assert epochs(tmp_path, "accuracy", (0.5, 0.6), (0.7, 0.9), (0.7, 0.8), (0.7, 0.8), (0.6, 0.1)) == 3
    assert epochs(tmp_path, "loss", (0.5, 0.6), (0.7, 0.9), (0.6, 0.1)) == 3


def test_without_a_better_epoch_it_ends_early(bert: Path, tmp_path: Path) -> None:
    files, output = labelled_files(tmp_path, num=32), tmp_path / "out"
    # nothing is learned, so the first epoch is the best
    argv = [f"model={bert}", f"data.files={files}", f"output={output}", "learning_rate=1e-12"]
    assert run([*argv, "num_epochs=20", "patience=2"]) == 0
    measured = results(output)
    assert len(measured["epochs"]) - measured["best_epoch"] == 2 and len(measured["epochs"]) < 20


@pytest.mark.parametrize("after_epochs", [0, 1])
def test_ctrl_c_keeps_the_best_epoch(
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    after_epochs: int,
) -> None:
    from learner.reward_models.training import RewardTrainer

    accumulate, steps_an_epoch = RewardTrainer.accumulate, 2

    def interrupting(trainer: Any, *arguments: Any) -> float:
        if trainer.step == after_epochs * steps_an_epoch + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return accumulate(trainer, *arguments)

    monkeypatch.setattr(RewardTrainer, "accumulate", interrupting)
    files, output = labelled_files(tmp_path, num=32), tmp_path / "out"
    argv = [f"model={bert}", f"data.files={files}", f"output={output}", *TOY]
    assert run(argv) == 130
    printed = capsys.readouterr().out
    if after_epochs:
        assert f"interrupted after 1 epochs: the best one so far, 1, is in {output}/model" in printed
        assert not results(output)["finished"]
        LearnedReward(model=str(output / "model"), label_ix=1).check()
    else:
        assert "nothing is kept" in printed and not (output / "model").exists()
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_earlier_model_is_written_over_only_when_asked(bert: Path, tmp_path: Path) -> None:
    files, output = labelled_files(tmp_path, num=16), tmp_path / "out"
    argv = [f"model={bert}", f"data.files={files}", f"output={output}", "num_epochs=1"]
    assert run(argv) == 0
    assert "holds a trained model; choose another output=, or overwrite=true" in refusal(*argv)
    assert run([*argv, "overwrite=true", "seed=1"]) == 0
    assert results(output)["settings"]["seed"] == 1
    assert "contains model=" in refusal(*argv, "overwrite=true", f"model={output}/model")
    assert "no results.json; choose another folder" in refusal(*argv, f"output={tmp_path}")
    # a wrong word leaves the earlier one whole
    assert "no column" not in refusal(*argv, "overwrite=true", "data.text=words", "data.label=l")
    assert results(output)["finished"]


# What is refused


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "1"}], "line 1: expected text and label, or prompt, response and label, or chosen and"),
        (
            [{"text": "1", "label": 0}, {"text": "2", "label": 1.5}],
            "line 2: column 'label': expected a label",
        ),
        ([{"text": "1", "label": None}], "expected a label, a whole number or a word, got None"),
        ([{"text": " ", "label": 0}], "line 1: the text is empty; data.skip_empty=true"),
        ([{"text": 5, "label": 0}], "expected a text in column 'text', got 5"),
        ([{"chosen": "1", "rejected": ""}], "column 'rejected': the text is empty"),
        ([{"chosen": [{"role": "user"}], "rejected": "2"}], "expected a text under 'content'"),
        (
            [
                row
                for n in range(10)
                for row in ({"text": f"{n}", "label": 0}, {"chosen": f"1 {n}", "rejected": f"2 {n}"})
            ],
            "others are pairs",
        ),
        (
            [{"text": f"{n}", "label": 1} for n in range(20)],
            "every training row has the label 1; a classifier needs two",
        ),
        (
            [{"chosen": f"{n}", "rejected": f"{n}"} for n in range(20)],
            "no usable row; left out: {'chosen = rejected': 16}",
        ),
        (
            [{"text": f"{place}", "label": n} for place, n in enumerate((0, 1, 0, 0, 0, 0, 0, 0, 2, 0))],
            "validation row has the label 2, but the training rows have only 0, 1",
        ),
    ],
)
def test_bad_rows_are_refused(bert: Path, tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    file = write(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "out"
    assert message in refusal(f"model={bert}", f"data.files={file}", f"output={output}")
    assert not output.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["model=x"], "data.files=FOLDER or FILE is required"),
        (["data.files=x"], "model: is required"),
        (["model=no/such/folder", "data.files=x"], "there is no such folder"),
        (["model=x", "data.files=x", "task=imdb"], "a task brings its own data"),
        (["model=x", "task=imbd"], "did you mean 'imdb'"),
        (
            ["model=x", "data.files=x", "data.lable=y"],
            "data.lable: there is no such option; did you mean 'label'",
        ),
        (["preset=intent"], "there is no such preset"),
        (["model=x", "data.files=x", "seed=1,2"], "expected one value"),
        (["model=x", "data.files=x", "learning_rate=0"], "learning_rate: got 0"),
    ],
)
def test_bad_requests_are_refused(argv: list[str], message: str) -> None:
    assert message in refusal(*argv)


def test_empty_texts_are_left_out_when_asked_and_counted(tmp_path: Path) -> None:
    rows = [row for n in range(10) for row in ({"text": f"{n}", "label": 0}, {"text": " ", "label": 1})]
    file = write(tmp_path / "rows.jsonl", rows)
    split = read_split(RewardData(files=str(file), skip_empty=True), None, None, "train")
    # the blank texts are one text, the second; the ninth and tenth are "7" and "8"
    assert [row.texts[0] for row in split.rows] == ["0", "1", "2", "3", "4", "5", "6", "9"]
    assert split.skipped == Counter({"empty": 10})


def test_margins_and_prompts_of_pairs(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Q:", "chosen": "yes", "rejected": "no", "by": 2},
        {"prompt": "Q:", "chosen": "Q: yes", "rejected": "Q: no", "by": 0.5},
    ] * 10
    data = RewardData(files=str(write(tmp_path / "rows.jsonl", rows)), margin="by")
    first, second, *_ = read_split(data, None, None, "train").rows
    assert first == RewardRow(("Q: yes", "Q: no"), margin=2.0)
    assert second == RewardRow(("Q: yes", "Q: no"), margin=0.5)  # the prompt is there already
    rows[0]["by"] = "much"
    write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match="column 'by': expected a number, got 'much'"):
        read_split(data, None, None, "train")


def test_labels_have_their_places() -> None:
    assert label_places([3, 1, 3], []) == ({1: 0, 3: 1}, ["1", "3"])
    assert label_places([10, 9], ["nine", "ten"]) == ({9: 0, 10: 1}, ["nine", "ten"])
    assert label_places(["no", "yes"], ["yes", "no"]) == ({"yes": 0, "no": 1}, ["yes", "no"])
    for labels, names, message in (
        ([1, "a"], [], "numbers and words mixed: 1, a"),
        ([1, 2], ["one"], "has 1 names, and the training rows 2 labels"),
        (["a", "b"], ["a", "c"], "but the labels are a, b"),
    ):
        with pytest.raises(InputError, match=message):
            label_places(labels, names)  # type: ignore[arg-type]


def test_help_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train-reward", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in [*choices_of(GROUP), "data.skip_empty", "head_learning_rate"])


def test_the_document_names_every_option() -> None:
    document = (Path(__file__).parents[4] / "docs" / "train-reward.md").read_text()
    words = set(re.findall(r"[\w.]+", document))
    options = {*TrainRewardSettings.model_fields, *(f"data.{name}" for name in RewardData.model_fields)}
    columns = {f"data.{name}" for name in ("prompt", "response", "chosen", "rejected")}  # named as columns
    assert options - columns - words - {"data", "overwrite"} == set() and "overwrite=true" in document
