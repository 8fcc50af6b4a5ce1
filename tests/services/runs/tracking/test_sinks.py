"""Trackers besides MLflow, in their own formats and without a network; each test needs its package."""

import json
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.config.compose import run_settings
from services.runs.tracking.checks import check_tracking
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.sinks import PACKAGES, missing_packages, open_sink
from services.runs.tracking.tracker import Tracker

OWN = "0123456789abcdef"  # a run's id


def track(output_dir: Path, name: str, identity: str | None = None) -> Tracker:
    """Log two steps and a sample into MLflow and one other tracker."""
    settings = TrackingSettings(also=(name,))  # type: ignore[arg-type]
    tracker = Tracker.start(settings, output_dir, "numbers", identity=identity)
    tracker.log_parameters({"seed": 7})
    tracker.log_metrics({"reward/mean": 0.25, "kl/mean": None}, step=1)
    tracker.log_metrics({"reward/mean": 0.5}, step=2)
    tracker.log_samples([{"prompt_text": "3 5", "reward": 0.5}], step=2, split="val")
    tracker.finish()
    return tracker


def events_of(file: Path) -> Iterator[Any]:
    """Read TensorBoard's records: length (8 bytes), checksum (4), event, checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    with file.open("rb") as records:
        while head := records.read(12):
            (length,) = struct.unpack("<Q", head[:8])
            yield Event.FromString(records.read(length))
            records.read(4)


def test_tensorboard_has_all_numbers(tmp_path: Path) -> None:
    assert track(tmp_path, "tensorboard").num_failures == 0
    (file,) = (tmp_path / "tensorboard" / "numbers").iterdir()
    values = [(event.step, value) for event in events_of(file) for value in event.summary.value]
    scalars = [(step, value.simple_value) for step, value in values if value.tag == "reward/mean"]
    assert scalars == [(1, 0.25), (2, 0.5)]
    tags = {value.tag for _, value in values}
    assert tags == {"reward/mean", "settings/text_summary", "samples/val/0/text_summary"}


def test_trackio_has_all_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    assert track(tmp_path, "trackio", OWN).num_failures == 0
    data = sqlite3.connect(tmp_path / "trackio" / "whetstone.db")
    assert set(data.execute("select run_name from metrics")) == {("numbers-01234567",)}
    rows = data.execute("select step, metrics from metrics")
    numbers = [(step, json.loads(text)) for step, text in rows]
    assert [(step, row["reward/mean"]) for step, row in numbers if "reward/mean" in row] == [
        (1, 0.25),
        (2, 0.5),
    ]


def test_weights_and_biases_writes_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert track(tmp_path, "wandb", OWN).num_failures == 0
    (file,) = (tmp_path / "wandb").glob(f"offline-run-*-{OWN}/run-{OWN}.wandb")
    deadline = time.monotonic() + 60  # its own process writes
    while b"reward/mean" not in file.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_team_is_that_of_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["model.path=m", "tracking.team=our-lab"]
    with pytest.raises(InputError, match=r"got team=our-lab for Weights & Biases; expected tracking\.also"):
        run_settings(overrides)
    settings = run_settings([*overrides, "tracking.also=wandb"]).tracking
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sink = open_sink("wandb", settings, "numbers", tmp_path, OWN)
    assert sink._run.entity == "our-lab"  # type: ignore[attr-defined]
    sink.close(is_finished=True)


def test_a_tracker_that_fails_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # its import fails
    tracker = track(tmp_path, "wandb")
    assert caplog.text.count("Weights & Biases fails, the run continues without it") == 1
    assert tracker.run_id is not None  # MLflow has the run


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_missing_package_is_told_before_the_start(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runs.tracking.sinks.find_spec", lambda module: None)
    assert missing_packages([name]) == [package]
    with pytest.raises(InputError, match=f"not installed: {package}; python -m pip install {package}"):
        check_tracking(TrackingSettings(also=(name,)))  # type: ignore[arg-type]


def test_one_tracker_or_a_list_is_named_on_the_command_line() -> None:
    overrides = ["model.path=gpt2", "task=increasing_numbers"]
    assert run_settings([*overrides, "tracking.also=wandb"]).tracking.also == ("wandb",)
    named = run_settings([*overrides, "tracking.also=[wandb,tensorboard]"])
    assert named.tracking.also == ("wandb", "tensorboard")
    with pytest.raises(InputError, match=r"tracking\.also"):
        run_settings([*overrides, "tracking.also=[comet]"])
