"""`whetstone diagnose RUN`: what it prints, as JSON and as a page, of invented runs."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.cli import COMMANDS, main
from services.commands.diagnose import run as diagnose
from services.runs.diagnosis.rules import RULES
from services.runs.folder import RunFolder
from services.runs.report.report import write_report
from tests.services.runs.diagnosis.curves import Curve, run

CONFIG = {
    "iterations": 80,
    "algorithm": {"name": "grpo", "learning_rate": 1e-5, "clip_range": 0.2, "kl": {"coefficient": 0.02}},
    "rollout": {"max_tokens": 256, "min_tokens": 0},
}
ILL: dict[str, Curve] = {
    "finish/stop": lambda i: 0.2,
    "clip_fraction": lambda i: 0.9 if 20 < i <= 40 else 0.1,
}


def left_behind(
    output_dir: Path, curves: dict[str, Curve] | None = None, held_out: Curve | None = None, n: int = 80
) -> RunFolder:
    """A run's folder with an invented history."""
    folder = RunFolder.open(str(output_dir), "invented", CONFIG, resume="auto")
    history = run(curves, held_out, iterations=n, noise=0.0)
    for row in history.rows:
        folder.append_rollout_info(row["iteration"], {k: v for k, v in row.items() if k != "iteration"})
    for row in history.evaluations:
        folder.append_evaluation(row["epoch"], "validation", row["metrics"])
    return folder


def test_findings_are_printed_with_their_numbers_and_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left_behind(tmp_path, ILL)

    assert diagnose([str(folder.path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "✗ Responses cut off 80% of the responses are cut off at rollout.max_tokens=256" in printed
    assert "since iteration 5 → rollout.max_tokens=512" in printed
    assert "! Clip fraction saturated 90% of the ratios are outside the clip range" in printed
    assert "from iteration 26 to 44 → algorithm.learning_rate=3e-06" in printed
    assert "2 findings in 80 iterations by 16 rules." in printed


def test_json_has_what_programs_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = left_behind(tmp_path, ILL)

    assert diagnose([str(folder.path), "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["iterations"] == 80 and diagnosis["blind"] == []
    assert [finding["rule"] for finding in diagnosis["findings"]] == ["clip_saturated", "responses_cut"]
    assert len(diagnosis["silent"]) == len(RULES) - 2
    cut = diagnosis["findings"][1]
    assert (cut["since"], cut["until"], cut["numbers"]) == (5, 80, {"finish/stop": 0.2})
    assert cut["set"][0] == "rollout.max_tokens=512" and cut["curves"][0] == "finish/stop"


def test_the_page_shows_each_findings_curves_and_stands_alone(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, ILL, lambda i: 0.4 - abs(i - 30) / 150)
    diagnose([str(folder.path)])
    html = (folder.path / "diagnosis.html").read_text(encoding="utf-8")

    HTMLParser().feed(html)
    assert html.count('class="card finding') == 3
    assert "since iteration 5" in html and "from iteration 26 to 44" in html
    assert "<strong>val/lexical/rouge_rouge1</strong>" in html and "<strong>clip_fraction</strong>" in html
    assert ">threshold<" in html
    assert not re.search(r'(?:src|href)="(?!#)', html)  # loads nothing


def test_the_page_marks_what_can_be_typed(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, ILL)
    diagnose([str(folder.path)])
    html = folder.diagnosis.read_text(encoding="utf-8")

    assert "<li><code>rollout.max_tokens=512</code></li>" in html
    assert "are cut off at <code>rollout.max_tokens=256</code>.</p>" in html
    assert "<li>fewer <code>algorithm.num_epochs</code></li>" in html


def test_report_and_diagnosis_lead_to_each_other_where_both_are_there(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, ILL)
    write_report(folder)
    assert "diagnosis.html" not in folder.report.read_text(encoding="utf-8")

    diagnose([str(folder.path)])
    assert 'href="diagnosis.html"' in folder.report.read_text(encoding="utf-8")
    assert 'href="report.html"' in folder.diagnosis.read_text(encoding="utf-8")

    folder.report.unlink()
    diagnose([str(folder.path)])
    assert not folder.report.exists() and "href" not in folder.diagnosis.read_text(encoding="utf-8")


def test_a_sound_run_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = left_behind(tmp_path)

    assert diagnose([str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing found in 80 iterations by 16 rules.")
    assert "No rule found anything." in (folder.path / "diagnosis.html").read_text(encoding="utf-8")


def test_too_few_iterations_and_no_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left_behind(tmp_path, n=4)

    with pytest.raises(InputError, match="got 4 iterations; expected at least 5"):
        diagnose([str(folder.path)])
    assert main(["diagnose", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert "diagnose" in COMMANDS
