"""A damaged file of a run is reported by name and line, and its content is kept."""

import json
import logging
import re
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.data.annotated.parts import read_manifest
from services.runs.folder import RunFolder
from services.runs.json_lines import read_rows, sift
from services.runs.report.report import write_report
from services.studies.pairwise.asking import kept_replies
from services.training.loop.scaling import FOUND, _is_answered

CONFIG = {"seed": 1, "iterations": 4}
DAMAGED = (
    (b'{"iteration": 2, "rew\x00\x00', "it is not JSON"),
    (b'{"iteration": 2, "text": "\xff"}', "it is not JSON: 'utf-8' codec can't decode"),
    (b"[2]", r"expected an object \{…\}, got list"),
    (b"null", r"expected an object \{…\}, got NoneType"),
    (b'{"iteratiom": 2}', "expected 'iteration' with a value of type int, got None"),
    (b'{"iteration": "two"}', "expected 'iteration' with a value of type int, got 'two'"),
    (b"[" * 100_000, "it is not JSON"),
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """After four iterations, each with an evaluation."""
    folder = RunFolder.open(tmp_path, "run", CONFIG, "auto")
    for iteration in range(1, 5):
        folder.append_rollout_info(iteration, {"reward/mean": iteration / 10})
        folder.append_evaluation(iteration, "val", {"reward/mean": 0.5})
        folder.write_predictions(iteration, "val", [{"prompt_text": "a"}])
    return folder


def spoil(file: Path, number: int, line: bytes) -> bytes:
    """Put something in a line's place; returns the file's new content."""
    lines = file.read_bytes().split(b"\n")
    lines[number - 1] = line
    file.write_bytes(b"\n".join(lines))
    return file.read_bytes()


@pytest.mark.parametrize(("line", "why"), DAMAGED)
def test_a_damaged_line_is_told_once_with_file_and_number_and_the_others_are_read(
    run: RunFolder, caplog: pytest.LogCaptureFixture, line: bytes, why: str
) -> None:
    file = run.path / "rollout_info.jsonl"
    spoil(file, 2, line)

    for _ in range(2):
        assert [row["iteration"] for row in run.rollout_info()] == [1, 3, 4]

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{file} is damaged and read without these lines: line 2: ")
    assert re.search(why, record.getMessage())


@pytest.mark.parametrize(("line", "why"), DAMAGED)
def test_a_resume_keeps_the_damaged_file_beside_the_one_without_the_line(
    run: RunFolder, caplog: pytest.LogCaptureFixture, line: bytes, why: str
) -> None:
    file = run.path / "rollout_info.jsonl"
    before = spoil(file, 2, line)

    run.truncate_after(3)

    assert [row["iteration"] for row in run.rollout_info()] == [1, 3]
    (kept,) = run.path.glob("rollout_info.jsonl.damaged-*")
    assert kept.read_bytes() == before
    (record,) = caplog.records
    assert (
        f"{file} is damaged, and the run continues without these lines: line 2: " in record.getMessage()
        and kept.name in record.getMessage()
    )


def test_evaluations_without_an_epoch_or_metrics_are_damaged_lines(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(run.path / "val_split_metrics.jsonl", 3, b'{"epoch": 3, "metrics": 7}')

    assert [row["epoch"] for row in run.evaluations("val")] == [1, 2, 4]
    assert "line 3: expected 'metrics' with a value of type dict, got 7" in caplog.text


def test_a_last_line_that_is_being_written_is_no_damage(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with (run.path / "rollout_info.jsonl").open("a") as file:
        file.write('{"iteration": 5, "rew')

    assert len(run.rollout_info()) == 4
    run.truncate_after(4)
    assert len(run.rollout_info()) == 4
    assert not caplog.records and not list(run.path.glob("*.damaged-*"))


def test_a_cut_line_that_a_checkpoint_holds_is_told(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    file = run.path / "rollout_info.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    run.truncate_after(3)
    assert not caplog.records  # iteration 4 is done again
    file.write_bytes(cut := file.read_bytes()[:-5])
    run.truncate_after(3)
    (copy,) = run.path.glob("rollout_info.jsonl.damaged-*")
    assert copy.read_bytes() == cut
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} is damaged, and the run continues without these lines: line 3: it was cut short. "
        f"The damaged file is kept as {copy.name}"
    ]
    assert [row["iteration"] for row in run.rollout_info()] == [1, 2]


@pytest.mark.parametrize(("iteration", "num_kept"), [(5, 1), (4, 0), (3, 0), (-1, 0)])
def test_a_cut_evaluation_is_told_unless_it_is_made_again(
    run: RunFolder, caplog: pytest.LogCaptureFixture, iteration: int, num_kept: int
) -> None:
    """The last one is that of iteration 4; a run that goes on at 4 makes it again, one at 5 does not."""
    file = run.path / "val_split_metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    run.truncate_after(iteration)
    assert len([*run.path.glob("val_split_metrics.jsonl.damaged-*")]) == len(caplog.records) == num_kept


def test_a_whole_last_line_without_its_end_counts(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n\n{"a": 2}')
    assert sift(tmp_path / "x.jsonl") == ([{"a": 1}, {"a": 2}], [])


@pytest.mark.parametrize("content", [b"[{", b"{}", b"[1]", b'["\xff"]'])
def test_damaged_predictions_are_named_and_the_report_goes_without_them(
    run: RunFolder, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file = run.path / "epoch_4_val_split_predictions.json"
    file.write_bytes(content)

    with pytest.raises(InputError, match=f"{file.name} is damaged"):
        run.predictions(4, "val")
    assert write_report(run).is_file()
    assert f"{file} is damaged" in caplog.text


def test_a_damaged_reply_of_the_judge_is_told_and_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "replies.jsonl"
    file.write_text('{"key": "a", "reply": "A"}\n{"key": "b", "reply": 7}\nnull\n{"key": "c", "rep')

    assert kept_replies(file) == {"a": "A"}
    assert [f"line {number}" in caplog.text for number in (2, 3, 4)] == [True, True, False]


@pytest.mark.parametrize("content", ["[]", "{", '{"rows": 3}', '{"reference": null}'])
def test_a_damaged_manifest_of_an_annotation_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"asked": 3}', '{"asked": 3, "to_be": null, "up": 3}', "3"])
def test_a_damaged_answer_of_a_run_is_no_answer(tmp_path: Path, content: str) -> None:
    (tmp_path / FOUND).write_text(content)
    assert not _is_answered(tmp_path, 3)


def test_what_was_told_of_another_file_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps([1]) + "\n")
        assert read_rows(tmp_path / name) == []
    assert len(caplog.records) == 2
