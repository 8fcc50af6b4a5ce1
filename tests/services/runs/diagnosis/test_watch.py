"""The warnings of a run: those of `whetstone diagnose`, each at most once in fifty iterations."""

from services.runs.diagnosis.diagnosis import diagnose
from services.runs.diagnosis.history import History
from services.runs.diagnosis.rule import Evidence
from services.runs.diagnosis.text_rules import ResponsesCut
from services.runs.diagnosis.watch import KEPT, PAUSE, Watch
from tests.services.runs.diagnosis.curves import run


def heard(watch: Watch, history: History, since: int = 1) -> list[tuple[int, str]]:
    """Messages of the watch as the run goes on, with the iterations."""
    messages = []
    for row in history.rows[since - 1 :]:
        before = row["iteration"] - 1
        for evaluation in [evaluation for evaluation in history.evaluations if evaluation["epoch"] == before]:
            watch.evaluated(evaluation["epoch"], evaluation["metrics"])
        metrics = {key: value for key, value in row.items() if key != "iteration"}
        iteration = row["iteration"]
        messages += [(iteration, message) for message in watch.warnings(iteration, metrics)]
    return messages


def test_a_warning_comes_when_the_diagnosis_says_since_and_again_after_the_pause() -> None:
    history = run({"finish/stop": lambda i: 0.2}, iterations=130)
    (finding,) = diagnose(history).findings

    messages = heard(Watch(history.settings), history)

    iterations = [iteration for iteration, _ in messages]
    assert iterations == [5, 5 + PAUSE, 5 + 2 * PAUSE] == [finding.since, 55, 105]
    assert messages[0][1] == (
        "Responses cut off: 80% of the responses are cut off at rollout.max_tokens=256. Try: "
        "rollout.max_tokens=512 (whetstone diagnose says more)"
    )


def test_a_sound_run_hears_nothing() -> None:
    history = run(iterations=130)

    assert heard(Watch(history.settings), history) == []


def test_a_resumed_run_is_not_told_again_what_it_was_told() -> None:
    history = run({"finish/stop": lambda i: 0.2}, iterations=100)
    watch = Watch.of(history.until(40))

    assert [iteration for iteration, _ in heard(watch, history, since=31)] == [90]
    assert [row["iteration"] for row in watch.rows] == list(range(1, 101))  # 31 to 40 were repeated


def test_held_out_measures_are_heard_of() -> None:
    history = run({}, lambda i: 0.4 - abs(i - 30) / 150)

    messages = heard(Watch(history.settings), history)

    assert [text.partition(":")[0] for _, text in messages] == ["Reward rises, held-out falls"]


def test_a_rule_that_fails_does_not_end_the_run() -> None:
    class Broken(ResponsesCut):
        def find(self, seen: History) -> Evidence | None:
            raise ZeroDivisionError

    history = run({"finish/stop": lambda i: 0.2}, iterations=10)

    assert len(heard(Watch(rules=(Broken(), ResponsesCut())), history)) == 1


def test_a_long_run_keeps_its_first_and_its_last_rows() -> None:
    history, watch = run(iterations=300), Watch()
    heard(watch, history)

    kept = [row["iteration"] for row in watch.rows]
    assert kept == [1, 2, 3, 4, 5, *range(301 - KEPT, 301)]
