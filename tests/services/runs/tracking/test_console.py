"""The console: what the lines and the screen say, that calls are cheap, and that threads may share it."""

import io
import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as Terminal
from rich.text import Text

from services.runs.standard_errors import Change
from services.runs.tracking.console import Console, LiveConsole, open_console
from services.runs.tracking.screen import Phase, RunView, _evaluations, draw_frame, iteration_line
from services.terminal.braille import draw_curve

METRICS = {"reward/mean": 0.5, "kl/mean": 0.031, "response_length/mean": 19.75, "kl/coefficient": 0.2}


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(Terminal(file=out, width=40)), out


def live(width: int = 80, height: int = 24) -> tuple[LiveConsole, io.StringIO]:
    out = io.StringIO()
    return LiveConsole(Terminal(file=out, force_terminal=True, width=width, height=height)), out


def frame(view: RunView, width: int = 80, height: int = 24, now: float = 0.0) -> list[str]:
    out = io.StringIO()
    Terminal(file=out, width=width, height=height).print(draw_frame(view, width, height, now))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def a_view(num_done: int) -> RunView:
    view = RunView(title="numbers-ppo", iterations=40, iteration=num_done)
    view.curve = [0.3 + 0.5 * i / 40 for i in range(num_done)]
    view.took_s = 4.0
    view.durations_s.extend([4.0] * num_done)
    view.metrics = dict(METRICS) if num_done else {}
    view.phases = {"rollout": Phase(64, began=-4.0, done=32), "update": Phase(16, began=-4.0)}
    view.evaluations = {"validation": [(0, 0.31), (10, 0.64)]}
    view.changes = {"validation": Change(0.33, 0.2)}
    view.notes.append(("12:00:00", "warning", "replica lost\nretrying [1/2] " + "and so on " * 20))
    return view


def lines_of(iterations: int, first: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations that have a line, of a run without a terminal."""
    console, out = plain()
    clock = iter(range(10**6))
    monkeypatch.setattr("services.runs.tracking.console.time.monotonic", lambda: seconds * next(clock))
    console.start("numbers-ppo", iterations, first)
    for iteration in range(first, iterations + 1):
        console.iteration_done(iteration, METRICS)
    return [int(line.split("/")[0].split()[1]) for line in out.getvalue().splitlines()[1:]]


def test_without_a_terminal_some_iterations_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(45, 1, 0.1, monkeypatch) == [1, 10, 20, 30, 40, 45]
    assert lines_of(45, 12, 0.1, monkeypatch) == [12, 20, 30, 40, 45]  # resumed
    assert lines_of(12, 1, 0.1, monkeypatch) == list(range(1, 13))  # few
    # Iterations of 10 s: 1, then 4 (30 s later), 7, 10, 13 …, and every tenth
    assert lines_of(22, 1, 10.0, monkeypatch) == [1, 4, 7, 10, 13, 16, 19, 20, 22]
    assert lines_of(30, 1, 40.0, monkeypatch) == list(range(1, 31))  # slow: each


def test_without_a_terminal_an_iteration_is_one_line() -> None:
    console, out = plain()
    console.start("numbers-ppo", iterations=40, first_iteration=11)
    console.phase("rollout", 64)
    console.advance("rollout", 64)
    console.evaluation_done("validation", 10, {"reward/mean": 0.64, "lexical/rouge_rouge1": 0.2, "x": None})
    console.iteration_done(11, METRICS)
    console.note("[bold]as it is[/bold]", level="warning")
    console.stop()

    lines = out.getvalue().splitlines()
    assert lines[0] == "numbers-ppo: iterations 11 to 40"
    assert lines[1] == "validation after iteration 10: reward/mean 0.64  lexical/rouge_rouge1 0.2"
    assert lines[2].startswith("iteration 11/40  reward 0.5  KL 0.031  KL coef 0.2  length 19.8  (")
    assert lines[3] == "warning: [bold]as it is[/bold]"
    assert len(lines) == 4


def test_what_takes_long_is_told_where_no_screen_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.doing.FIRST_S", 0.0)
    console, out = plain()
    drawn, _ = live()
    drawn.start("numbers-ppo", iterations=2)
    for screen in (console, drawn):
        with screen.doing("evaluating"):
            deadline = time.monotonic() + 60
            while screen is console and not out.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
    drawn.stop()
    assert out.getvalue().startswith("evaluating …\nevaluating took ")
    assert not drawn.view.notes


def test_a_run_whose_iterations_are_all_done_names_none() -> None:
    console, out = plain()
    console.start("numbers-ppo", iterations=40, first_iteration=41)
    assert out.getvalue() == "numbers-ppo: all 40 iterations are done; only final steps are left\n"


def test_missing_and_undefined_numbers_are_no_accident() -> None:
    console, out = plain()
    console.start("numbers-ppo", iterations=2)
    console.iteration_done(1, {})
    console.iteration_done(2, {"reward/mean": None, "kl/mean": math.nan})
    console.evaluation_done("test", 2, {})

    assert "iteration 2/2  reward –  KL –  (" in out.getvalue()


@pytest.mark.parametrize("num_done", [0, 1, 2, 40])
@pytest.mark.parametrize("size", [(80, 24), (140, 50), (60, 20)])
def test_the_screen_fits_the_terminal_from_the_first_to_the_last_iteration(
    num_done: int, size: tuple[int, int]
) -> None:
    lines = frame(a_view(num_done), *size)
    assert len(lines) < size[1]  # a line is left for the cursor
    assert max(map(len, lines)) <= size[0]
    assert f"iteration {num_done}/40" in lines[0]


def test_the_screen_says_what_is_known() -> None:
    text = "\n".join(frame(a_view(12)))
    assert "numbers-ppo" in text
    assert "iteration 12/40 · about 1 min 52 s left" in text  # (40 − 12) × 4 s
    assert "32/64" in text
    assert "8/s" in text  # 32 in 4 s
    assert "validation 0.31 → 0.64  at iteration 10" in text
    assert "0.0" in text and "0.031" in text
    assert "0.438 ┤" in text  # the highest reward: 0.3 + 0.5 · 11/40
    assert "12:00:00 replica lost retrying [1/2] and so on" in text


def rows_of(rewards: list[float]) -> list[dict[str, object]]:
    return [{"sample_id": str(place), "reward": reward} for place, reward in enumerate(rewards)]


def line_of(view: RunView, split: str) -> Text:
    """The screen's line of a split's evaluations, with its styles."""
    lines = [line for line in _evaluations(view) if isinstance(line, Text) and line.plain.startswith(split)]
    return lines[0]


@pytest.mark.parametrize(
    ("after", "values", "change", "colour"),
    [
        ([0.2, 0.58, 1.0, 0.42], "0.45 → 0.55 ± 0.17", "+0.1000 ± 0.0082", "green"),
        ([0.05, 0.44, 0.85, 0.25], "0.45 → 0.40 ± 0.17", "-0.0525 ± 0.0025", "red"),
        ([0.5, 0.1, 0.3, 0.9014], "0.45 → 0.45 ± 0.17", "+0.00 ± 0.29, no clear change", "default"),
    ],
)
def test_a_change_has_a_colour_beyond_its_error_prompt_by_prompt(
    after: list[float], values: str, change: str, colour: str
) -> None:
    before = [0.1, 0.5, 0.9, 0.3]
    console, out = plain()
    for iteration, rewards in ((0, before), (10, after)):
        metrics = {"reward/mean": sum(rewards) / 4, "reward/standard_error": 0.17}
        console.evaluation_done("validation", iteration, metrics, rows_of(rewards))
    line = line_of(console.view, "validation")
    assert line.plain == f"validation {values}  at iteration 10  {change}"
    assert any(f"bold {colour}" in str(span.style) for span in line.spans)
    first, second = out.getvalue().splitlines()
    assert "since" not in first
    assert second.endswith(f"(reward/mean since iteration 0: {change})")


def test_a_change_of_which_nobody_knows_the_error_has_no_colour() -> None:
    console, _ = plain()
    console.evaluation_done("test", 0, {"lexical/bleu": 0.1})
    console.evaluation_done("test", 10, {"lexical/bleu": 0.9})
    line = line_of(console.view, "test")
    assert line.plain == "test 0.1 → 0.9  at iteration 10  +0.8, error not known"
    assert any("bold default" in str(span.style) for span in line.spans)


def test_a_finished_run_says_so() -> None:
    view = a_view(40)
    assert "iteration 40/40 · evaluating and saving" in frame(view)[0]
    view.is_over = True
    assert "iteration 40/40 · done" in frame(view)[0]


def run_by_the_clock(*iterations: tuple[float, float], of: int = 80) -> tuple[RunView, float]:
    """A view after iterations, each with the seconds before it and its own."""
    view, now = RunView(iterations=of), 100.0
    view.iteration_began = now
    for number, (before_s, own_s) in enumerate(iterations, 1):
        now += before_s + own_s
        view.iteration = number
        view.iteration_ended(now, own_s)
    return view, now


def test_the_first_evaluation_and_a_slow_first_iteration_are_not_taken_for_what_is_to_come() -> None:
    """As it was with a minute of evaluation and warming up before iterations of one second."""
    view, now = run_by_the_clock((60.0, 20.0))
    assert view.remaining_s(now) is None
    assert iteration_line(view, now) == "iteration 1/80    (20 s)"
    view, now = run_by_the_clock((60.0, 20.0), *[(0.0, 1.0)] * 2)
    assert view.remaining_s(now) is None
    view, now = run_by_the_clock((60.0, 20.0), *[(0.0, 1.0)] * 3)
    assert view.remaining_s(now) == 76.0
    view, now = run_by_the_clock((60.0, 20.0), *[(0.0, 1.0)] * 9)
    assert iteration_line(view, now) == "iteration 10/80    (1 s, about 1 min 10 s left)"


def test_a_supervised_run_shows_its_loss_and_not_that_it_generates_nothing() -> None:
    view, now = run_by_the_clock((0.0, 2.0))
    view.metrics = {
        "loss/policy": 0.25,
        "throughput/generated_tokens_per_s": 0.0,
        "throughput/trained_tokens_per_s": 1300.0,
    }
    assert iteration_line(view, now) == "iteration 1/80  loss 0.25  tokens/s 1,300  (2 s)"
    assert any("gradient norm" in line for line in frame(view))
    view.metrics["reward/mean"] = 0.5
    assert iteration_line(view, now) == "iteration 1/80  reward 0.5  tokens/s 0  (2 s)"


@given(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=2), st.floats(0.5, 2.0), st.integers(7, 30))
def test_two_slow_iterations_at_the_start_never_make_minutes_of_a_run(
    slow: list[float], each_s: float, num_done: int
) -> None:
    """No "29 min left" of a two-minute run: of seven and more, two slow ones do not move the median."""
    times = [(30.0, slow[0]), (0.0, slow[1]), *[(0.0, each_s)] * (num_done - 2)]
    view, now = run_by_the_clock(*times)

    assert view.remaining_s(now) == pytest.approx((80 - num_done) * each_s)


def test_evaluations_in_between_are_spread_over_iterations() -> None:
    view, now = run_by_the_clock((60.0, 20.0), *[(0.0, 1.0)] * 9, (11.0, 1.0))
    assert view.remaining_s(now) == pytest.approx(69 * (1.0 + 11.0 / 10))
    assert iteration_line(view, now).endswith("(1 s, about 2 min 25 s left)")


def test_the_time_that_the_iteration_under_way_has_taken_counts_once() -> None:
    view, now = run_by_the_clock(*[(0.0, 4.0)] * 4, of=6)
    assert [view.remaining_s(now + passed) for passed in (0.0, 3.0, 4.0, 50.0)] == [8.0, 5.0, 4.0, 4.0]


def test_after_the_last_iteration_nothing_is_said_to_be_left() -> None:
    view, now = run_by_the_clock(*[(0.0, 4.0)] * 5, of=5)
    assert iteration_line(view, now) == "iteration 5/5    (4 s)"


def test_a_phase_keeps_its_rate_once_it_is_complete() -> None:
    phase = Phase(total=10, began=100.0)
    phase.advance(4, now=101.0)
    assert phase.rate(now=102.0) == 2.0
    phase.advance(6, now=105.0)
    assert phase.rate(now=1000.0) == 2.0


def test_the_live_screen_stays_after_the_end_and_stops_twice() -> None:
    console, out = live()
    console.start("numbers-ppo", iterations=2)
    console.note("engine ready")
    console.iteration_done(1, METRICS)
    console.iteration_done(2, METRICS | {"reward/mean": 0.75})
    console.stop()
    console.stop()

    shown = out.getvalue()
    assert "iteration 2/2 · done" in shown
    assert "engine ready" in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is visible again
    assert not console._thread.is_alive()


def test_a_live_screen_that_never_started_stops_quietly() -> None:
    console, out = live()
    console.note("model not found", level="warning")
    console.stop()
    assert "warning: model not found" in out.getvalue()


def test_calls_cost_less_than_a_millisecond_while_the_screen_is_drawn() -> None:
    console, _ = live()
    console.start("numbers-ppo", iterations=2000)
    console.phase("rollout", 2000)
    costs_s = []
    for i in range(2000):
        began = time.perf_counter()
        console.advance("rollout")
        console.iteration_done(i + 1, METRICS)
        costs_s.append((time.perf_counter() - began) / 2)
    console.stop()
    assert sorted(costs_s)[len(costs_s) // 2] < 1e-3


def test_threads_share_the_console_and_lose_nothing() -> None:
    console, _ = live()
    console.start("numbers-ppo", iterations=4)
    console.phase("rollout", 4000)

    def work() -> None:
        for i in range(1000):
            console.advance("rollout")
            if i % 100 == 0:
                console.note(f"at {i}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    console.stop()
    assert console.view.phases["rollout"].done == 4000
    assert console.view.phases["rollout"].ended is not None


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console = open_console()
    console.note("hello")
    assert type(console) is Console
    assert capsys.readouterr().out == "hello\n"


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    # Four dots high, four across: values 0 1 2 3 lie on the diagonal, a dot a column:
    # left letter: bottom row left (0x40), third row right (0x20); right letter: second row left (0x02),
    # top row right (0x08).
    assert draw_curve([0, 1, 2, 3], width=2, height=1) == [chr(0x2800 + 0x60) + chr(0x2800 + 0x0A)]


def test_a_jump_is_joined_and_a_gap_is_not() -> None:
    joined = draw_curve([0, 7], width=1, height=2)
    # Column 0 has the bottom dot alone; column 1 all the dots above it, the bottom one left to column 0.
    assert joined == [chr(0x2800 + 0x08 + 0x10 + 0x20 + 0x80), chr(0x2800 + 0x40 + 0x08 + 0x10 + 0x20)]
    assert draw_curve([1, math.nan, 1], width=3, height=1)[0][1] == chr(0x2800)


@given(
    st.lists(st.floats(allow_infinity=False, width=32), min_size=1, max_size=300),
    st.integers(1, 60),
    st.integers(1, 8),
)
def test_a_curve_always_has_its_size(values: list[float], width: int, height: int) -> None:
    lines = draw_curve(values, width, height)
    assert [len(line) for line in lines] == [width] * height
    assert all(0x2800 <= ord(letter) <= 0x28FF for line in lines for letter in line)


@given(st.floats(-1e6, 1e6), st.integers(1, 500))
def test_a_constant_is_a_level_line(value: float, length: int) -> None:
    lines = draw_curve([value] * length, width=10, height=3)
    assert [set(line) != {chr(0x2800)} for line in lines] == [False, True, False]
