"""The report, made of an invented run: what it says, and that it says it in every state of a run."""

import math
import random
import re
import statistics
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.commands.report import run
from services.runs.folder import RunFolder
from services.runs.report.curves import Curve, Panel, draw_svg, named_value_panels, reward_panel
from services.runs.report.report import write_report
from services.runs.report.run_page import headline, merged, sample_pairs, timings
from services.runs.tracking.tracker import Tracker
from services.training.train.train import finish_report

CONFIG: dict[str, Any] = {
    "iterations": 40,
    "seed": 1,
    "model": {"path": "runs/base/model"},
    "algorithm": {"name": "ppo", "clip_range": 0.2},
    "task": {"name": "increasing_numbers"},
    "reward": [{"name": "increasing_numbers", "weight": 0.8}, {"name": "length", "weight": 0.2}],
}


def invented_run(output_dir: Path, iterations: int = 40, evaluate_every: int = 10) -> RunFolder:
    """A run as training would leave it, with made-up numbers."""
    draw = random.Random(0)
    folder = RunFolder.open(output_dir, "numbers-ppo-seed1", CONFIG, resume="auto")
    for iteration in range(1, iterations + 1):
        learned = 1 - math.exp(-iteration / 12)
        reward = 0.31 + 0.55 * learned + draw.gauss(0, 0.015)
        folder.append_rollout_info(
            iteration,
            {
                "reward/mean": reward,
                "reward/increasing_numbers/mean": reward - 0.05,
                "reward/length/mean": 0.6 + 0.3 * learned + draw.gauss(0, 0.02),
                "response_length/mean": 17 + 3 * learned,
                "throughput/generated_tokens_per_s": draw.gauss(5100, 150),
                "time/rollout_s": draw.gauss(1.2, 0.05),
                "time/reward_s": 0.08,
                "time/weights_s": 0.03,
            },
        )
        folder.append_training_info(
            iteration,
            {
                "kl/mean": 0.09 * learned + abs(draw.gauss(0, 0.004)),
                "kl/coefficient": 0.2 * (1.0 if iteration < 15 else 1.1),
                "entropy": 3.1 - 1.4 * learned,
                "loss/policy": draw.gauss(-0.02, 0.006),
                "loss/value": 0.4 * math.exp(-iteration / 8) + 0.03,
                "clip_fraction": 0.12 + draw.gauss(0, 0.02),
                "explained_variance": 0.85 * learned if iteration > 1 else float("nan"),
                "throughput/trained_tokens_per_s": draw.gauss(9800, 200),
                "time/score_s": 0.31,
                "time/update_s": draw.gauss(1.9, 0.05),
                "time/iteration_s": 3.75,
            },
        )
    for epoch in range(0, iterations + 1, evaluate_every) if evaluate_every else ():
        evaluate(folder, draw, epoch, "validation")
        if epoch in (0, iterations):
            evaluate(folder, draw, epoch, "test")
    return folder


def evaluate(folder: RunFolder, draw: random.Random, epoch: int, split: str) -> None:
    reward = 0.3 + 0.55 * (1 - math.exp(-epoch / 12))
    spread = [draw.gauss(0, 0.05) for _ in range(20)]
    rows = []
    for index in range(20):
        start = 3 + index
        numbers = [start + 2 * step if epoch else draw.randint(1, 99) for step in range(18)]
        rows.append(
            {
                "split_name": split,
                "sample_id": f"increasing_numbers/{split}/{index}",
                "prompt_text": f"{start - 2} {start - 1}",
                "generated_text": " ".join(map(str, numbers)),
                "ref_text": "",
                "reward": reward + spread[index] - statistics.fmean(spread),
                "synthetic/increasing_numbers_in_text": 1.0 if epoch else 0.2,
            }
        )
    metrics = {
        "reward/mean": reward,
        "synthetic/increasing_numbers_in_text": reward,
        "length/mean_words": 18.0,
    }
    folder.append_evaluation(epoch, split, metrics)
    folder.write_predictions(epoch, split, rows)


class Page(HTMLParser):
    """The text of a page, and every address it would fetch."""

    def __init__(self, html: str):
        super().__init__()
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.classes: list[str] = []
        self.feed(html.replace("<wbr>", ""))  # a place to break, no text
        self.text = " ".join(" ".join(self.texts).split())

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.classes += [name for key, value in attrs if key == "class" for name in (value or "").split()]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data")]


def page_of(folder: RunFolder) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_a_finished_run_is_told_with_everything_in_one_file(tmp_path: Path) -> None:
    folder = invented_run(tmp_path)
    page = page_of(folder)

    assert page.addresses == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "iterations 40 of 40" in page.text
    assert "not finished" not in page.text
    assert "Validation · reward/mean 0.3 → 0.83" in page.text  # 0.3 + 0.55 · (1 − e^(−40/12)) = 0.830
    assert "Test · reward/mean 0.3 → 0.83" in page.text
    assert "from iteration 0 to 40: ▲ +0.530 ± 0.0" in page.text
    assert "no clear change" not in page.text
    assert page.classes.count("up") == 2  # of both splits
    assert "synthetic/increasing_numbers_in_text 0.2 → 1" in page.text
    for title in (
        "Reward",
        "KL to the reference",
        "Entropy",
        "Value loss",
        "Throughput",
        "Explained variance",
    ):
        assert title in page.text
    assert "clip_range: 0.2" in page.text
    assert page.tags.count("svg") == 2 + 9 + 2  # the reward's, wide and narrow; nine others; two metrics
    assert "style" in page.tags and "prefers-color-scheme: dark" in page.text


def compared(output_dir: Path, before: list[float], after: list[float], error: float | None) -> Page:
    """The page of a run whose two evaluations gave these rewards, a prompt each."""
    folder = RunFolder.open(output_dir, "run", CONFIG, resume="auto")
    for epoch, rewards in ((0, before), (40, after)):
        metrics = {"reward/mean": statistics.fmean(rewards), "reward/standard_error": error}
        folder.append_evaluation(epoch, "validation", metrics)
        rows = [{"sample_id": str(place), "reward": reward} for place, reward in enumerate(rewards)]
        folder.write_predictions(epoch, "validation", rows)
    return page_of(folder)


def test_a_change_within_its_error_has_no_arrow_and_no_colour(tmp_path: Path) -> None:
    before = [0.1, 0.5, 0.9, 0.3]
    page = compared(tmp_path, before, [0.5, 0.1, 0.3, 0.9014], error=0.17)
    assert "from iteration 0 to 40: +0.00 ± 0.29, no clear change" in page.text
    assert not {"▲", "▼"} & set(page.text)
    assert not {"up", "down"} & set(page.classes)
    assert "± is the standard error of the change over prompts" in page.text


def test_a_small_change_of_every_prompt_is_clear_beside_large_errors_of_the_means(tmp_path: Path) -> None:
    before = [0.1, 0.5, 0.9, 0.3]
    page = compared(tmp_path, before, [value - 0.01 for value in before], error=0.17)
    assert "▼ -0.01" in page.text and page.classes.count("down") == 1


def test_more_of_what_nobody_called_better_has_an_arrow_and_no_colour(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", CONFIG, resume="auto")
    for epoch, values in ((0, (0.5, 0.6)), (40, (0.7, 0.8))):
        folder.append_evaluation(epoch, "validation", {"lexical/ter": statistics.fmean(values)})
        rows = [{"sample_id": str(place), "lexical/ter": value} for place, value in enumerate(values)]
        folder.write_predictions(epoch, "validation", rows)
    page = page_of(folder)
    assert "▲ +0.2" in page.text
    assert not {"up", "down"} & set(page.classes)


def test_the_picture_of_the_curves_is_a_png_of_a_fair_size(tmp_path: Path) -> None:
    folder = invented_run(tmp_path, iterations=3)
    write_report(folder)
    header = folder.curves.read_bytes()[:24]
    width, height = struct.unpack(">II", header[16:24])
    assert header.startswith(b"\x89PNG")
    assert width > 1000 and height > 600


def test_a_run_in_progress_says_so(tmp_path: Path) -> None:
    page = page_of(invented_run(tmp_path, iterations=12))
    assert "iterations 12 of 40 not finished" in page.text


def test_a_run_without_an_evaluation_has_its_curves(tmp_path: Path) -> None:
    page = page_of(invented_run(tmp_path, evaluate_every=0))
    assert "No evaluation yet." in page.text
    assert "KL to the reference" in page.text


def test_one_iteration_is_enough(tmp_path: Path) -> None:
    page = page_of(invented_run(tmp_path, iterations=1, evaluate_every=1))
    assert page.tags.count("use") > 0  # a single value is a dot, not an invisible line


def test_a_run_before_its_first_iteration_has_a_page(tmp_path: Path) -> None:
    page = page_of(RunFolder.open(tmp_path, "new", CONFIG, resume="auto"))
    assert "No iteration has ended yet." in page.text
    assert "No evaluation yet." in page.text


class Artifacts(Tracker):
    def __init__(self) -> None:
        self.names: list[str] = []

    def log_artifact(self, path: Path) -> None:
        self.names.append(path.name)


@pytest.mark.parametrize(
    ("iterations", "tracked"), [(0, ["report.html"]), (1, ["report.html", "learning_curves.png"])]
)
def test_a_run_stopped_early_tracks_what_there_is(
    tmp_path: Path, iterations: int, tracked: list[str]
) -> None:
    tracker = Artifacts()
    finish_report(invented_run(tmp_path, iterations, evaluate_every=0), tracker)
    assert tracker.names == tracked


def test_a_run_evaluated_once_shows_no_comparison_with_itself(tmp_path: Path) -> None:
    page = page_of(invented_run(tmp_path, iterations=5))
    assert "the only evaluation so far" in page.text
    assert page.text.count("Iteration 0") == 8


def test_what_a_model_writes_is_shown_and_never_run(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "new", CONFIG, resume="auto")
    row = {"sample_id": "1", "prompt_text": "<b>&", "generated_text": "<script>alert(1)</script>{{ 7 * 7 }}"}
    folder.write_predictions(0, "val", [row])
    page = page_of(folder)
    assert "script" not in page.tags
    assert "<script>alert(1)</script>{{ 7 * 7 }}" in page.text


def test_values_that_were_undefined_are_left_out_of_curves(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "new", CONFIG, resume="auto")
    folder.append_rollout_info(1, {"reward/mean": float("nan")})
    folder.append_rollout_info(2, {"reward/mean": 0.5})
    html = write_report(folder).read_text()
    assert re.search(r"\bnan\b", html, re.IGNORECASE) is None


def test_the_command_writes_the_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = invented_run(tmp_path, iterations=2)
    assert run([str(folder.path)]) == 0
    assert capsys.readouterr().out.strip() == str(folder.report)
    assert folder.report.exists()


def test_a_wrong_folder_is_answered_with_the_runs_nearby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invented_run(tmp_path / "runs", iterations=1)
    with pytest.raises(InputError) as refused:
        run(["runs/numbers-ppo-seed2"])
    assert str(refused.value) == (
        "runs/numbers-ppo-seed2: there is no such folder; expected a run's folder, <output_dir>/<run_name>. "
        "Did you mean runs/numbers-ppo-seed1? Runs nearby, newest first:\n  runs/numbers-ppo-seed1"
    )
    with pytest.raises(
        InputError, match=r"^runs: it has no config.yaml, .*[^?] Runs nearby, newest first:\n"
    ):
        run(["runs"])
    with pytest.raises(InputError, match=r"there is no such folder; .*\. There are no runs nearby$"):
        monkeypatch.chdir("/proc/self/task")
        run(["/proc/nowhere/x"])


def test_the_first_metric_stands_in_for_a_missing_reward() -> None:
    rows = [{"epoch": 0, "metrics": {"lexical/x": 0.1}}, {"epoch": 5, "metrics": {"lexical/x": 0.3}}]
    line = headline("val", rows)
    assert line is not None
    assert (line.metric, line.before, line.after, line.epochs) == ("lexical/x", 0.1, 0.3, (0, 5))
    assert headline("val", []) is None
    assert headline("val", [{"epoch": 0, "metrics": {"reward/mean": None}}]) is None


def test_samples_are_paired_by_their_id_in_the_order_of_the_data() -> None:
    before = [{"sample_id": i, "prompt_text": f"p{i}", "generated_text": f"old {i}"} for i in (3, 1, 2)]
    after = [{"sample_id": i, "prompt_text": f"p{i}", "generated_text": f"new {i}"} for i in (1, 2, 3, 4)]
    pairs = sample_pairs(before, after)
    assert [(pair.prompt, pair.before, pair.after) for pair in pairs] == [
        ("p3", "old 3", "new 3"),
        ("p1", "old 1", "new 1"),
        ("p2", "old 2", "new 2"),
    ]


def test_several_texts_of_one_prompt_count_once() -> None:
    before = [{"sample_id": 1, "generated_text": text} for text in ("first", "second")]
    after = [{"sample_id": 1, "generated_text": text} for text in ("third", "fourth")]
    assert [(pair.before, pair.after) for pair in sample_pairs(before, after)] == [("first", "third")]


def test_time_that_no_phase_claims_is_other() -> None:
    row = {"time/rollout_s": 2.0, "time/update_s": 1.0, "time/iteration_s": 4.0}
    times = {time.name: time for time in timings([row, row])}
    assert (times["rollout"].mean_s, times["rollout"].share, times["rollout"].total_s) == (2.0, 0.5, 4.0)
    assert (times["other"].mean_s, times["other"].share) == (1.0, 0.25)
    assert sum(time.share for time in times.values()) == 1.0


def test_phases_that_overlap_share_their_sum() -> None:
    times = timings([{"time/rollout_s": 3.0, "time/reward_s": 3.0, "time/iteration_s": 4.0}])
    shares = {time.name: time.share for time in times}
    assert shares["rollout"] == shares["reward"] == 0.5
    assert shares["other"] == 0.0


def test_rows_of_two_files_meet_by_iteration() -> None:
    assert merged([{"iteration": 2, "a": 1}, {"iteration": 1, "a": 0}], [{"iteration": 2, "b": 5}]) == [
        {"iteration": 1, "a": 0},
        {"iteration": 2, "a": 1, "b": 5},
    ]


def test_a_single_reward_is_not_drawn_twice_as_its_own_part() -> None:
    rows = [{"iteration": 1, "reward/mean": 0.5, "reward/length/mean": 0.5}]
    assert [curve.label for curve in reward_panel(rows, []).curves] == ["mean"]
    rows[0]["reward/rouge/mean"] = 0.4
    assert [curve.label for curve in reward_panel(rows, []).curves] == ["mean", "length", "rouge"]


def test_a_rewards_named_values_have_charts_of_their_own() -> None:
    rows = [{"iteration": 1, "reward/mean": 0.5, "reward/judge/mean": 0.5, "reward/judge/words/mean": 24.0}]
    assert [curve.label for curve in reward_panel(rows, []).curves] == ["mean"]
    (panel,) = named_value_panels(rows)
    assert (panel.title, [curve.points for curve in panel.curves]) == ("judge/words", [((1.0, 24.0),)])


def line_of(svg: str) -> list[tuple[float, float]]:
    """The points of the first curve, in pixels, y downwards."""
    path = re.search(r'<path d="([^"]*)"[^>]*style="[^"]*var\(--c0\)', svg)
    assert path is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path[1])]


def test_a_chart_puts_points_where_they_belong() -> None:
    panel = Panel("x", "", (Curve("x", ((0.0, 0.0), (5.0, 0.25), (10.0, 1.0))),))
    svg = draw_svg(panel, width=340, height=180).svg
    (left, bottom), (middle, quarter), (right, top) = line_of(svg)
    assert 0 < left < right < 340 and 0 < top < bottom < 180
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    assert quarter == pytest.approx(bottom - (bottom - top) / 4, abs=0.1)
    assert re.findall(r">([\d.]+)</text>", svg) == [
        "0",
        "2",
        "4",
        "6",
        "8",
        "10",
        "0",
        "0.25",
        "0.5",
        "0.75",
        "1",
    ]


@pytest.mark.parametrize("values", ([0.3], [0.0, 0.0], [-1e9, 1e9], [1e-7, 2e-7], [5.0] * 400))
def test_a_chart_stays_in_its_box(values: list[float]) -> None:
    points = tuple((float(i), value) for i, value in enumerate(values))
    svg = draw_svg(Panel("x", "", (Curve("x", points),)), width=340, height=180).svg
    assert all(0 <= x <= 340 and 0 <= y <= 180 for x, y in line_of(svg))


def test_a_long_run_is_thinned_and_keeps_its_last_value() -> None:
    rows = [{"iteration": i, "reward/mean": float(i)} for i in range(1, 5001)]
    (curve,) = reward_panel(rows, []).curves
    assert len(curve.points) <= 240
    assert curve.points[-1] == (5000.0, 5000.0)


def test_the_page_shows_a_prompt_as_the_model_read_it(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "new", CONFIG, resume="auto")
    assert "as the model reads it" not in page_of(folder).text
    row = {"sample_id": "0", "prompt_text": "3 5", "prompt_as_read": "<s>3 5</s>", "generated_text": "7"}
    folder.write_predictions(0, "validation", [row])
    page = page_of(folder)
    assert "The first validation prompt as the model reads it <s>3 5</s>" in page.text
