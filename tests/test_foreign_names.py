"""Folders, files, rewards and runs whose names are written in letters beyond ASCII."""

import json
import unicodedata
from pathlib import Path

import pytest

from services.config.compose import run_settings
from services.training.train.sweep import jobs
from tests.local_run import train_here
from tests.models import make_tiny_model

REWARD = """
def güte(samples):
    return [float(len(sample.text)) for sample in samples]
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_run_may_bear_any_name(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of Unicode: letters with marks of their own, and letters that marks follow."""

    def named(text: str) -> str:
        return unicodedata.normalize(form, text)  # type: ignore[arg-type]

    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / named("modèle ß"))
    rows = [json.dumps({"prompt": f"Grüße {number}"}, ensure_ascii=False) for number in range(4)]
    for name in ("dätä 数据.jsonl", "prüfung.jsonl"):
        Path(named(name)).write_text("\n".join(rows), encoding="utf-8")
    Path(named("bewertung_ä.py")).write_text(named(REWARD), encoding="utf-8")
    Path(named("versuch_ö.yaml")).write_text("# @package _global_\niterations: 1\n")
    settings = run_settings(
        [
            named("model.path=modèle ß"),
            "task=prompts",
            named("task.data_files={train: dätä 数据.jsonl, validation: prüfung.jsonl, test: prüfung.jsonl}"),
            named("reward=[bewertung_ä.py:güte, length]"),
            named("reward.güte.weight=2"),
            named("experiment=versuch_ö.yaml"),
            named("output_dir=läufe"),
            named("run_name=lauf ü 🙂"),
            "rollout={engine: transformers, max_tokens: 4, prompts_per_iteration: 2, num_threads: 1}",
            "learner={device: cpu, num_threads: 1}",
            "metrics=[]",
            "tracking.enabled=false",
            "evaluation.num_prompts=2",
        ]
    )
    folder = train_here(settings)
    assert folder.path == tmp_path / named("läufe") / named("lauf ü 🙂")
    (row,) = folder.rollout_info()
    assert row["reward/mean"] == pytest.approx(2 * row["reward/güte/mean"] + row["reward/length/mean"])
    assert folder.model.exists()


def test_runs_of_a_sweep_are_told_apart_in_any_script(tmp_path: Path) -> None:
    of_all = ["model.path=m", f"output_dir={tmp_path}", "reward=length", "metrics=[]"]
    planned = jobs([*of_all, "task.data_files=ä,数据,🙂", "task=prompts"])
    assert [job.run_name.rpartition("-")[2] for job in planned] == ["ä", "数据", "🙂"]
