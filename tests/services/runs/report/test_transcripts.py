"""Episodes in the report, of an invented run: which are shown, and that all they say is shown as said."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from rollout_workers.tools.tool_calls import Call, written
from services.runs.folder import RunFolder
from services.runs.report.evaluated import Evaluated, evaluation_table
from services.runs.report.report import write_report
from services.runs.report.run_page import headline
from services.runs.report.terminal import episode_view
from services.runs.report.transcripts import SHOWN_TURNS, ShownCall, transcript, transcripts
from tests.services.runs.report.test_report import CONFIG, Page

KITCHEN = "[Kitchen]\nYou are in a kitchen. There is a fridge here, and a closed door to the east."
CORRIDOR = "[Corridor]\nA corridor without a window. On the floor lies a coin."
HINT = "\nYour possible actions are go east, go west, open door, take coin, or look."


def row(sample: int, end: str, *turns: tuple[str, str, float]) -> dict[str, Any]:
    reward = sum(turn[2] for turn in turns)
    return {
        "split_name": "val",
        "sample_id": f"textworld/validation/{sample}",
        "prompt_text": f"coin, level 5, game {sample}",
        "generated_text": "\n".join(turn[1] for turn in turns),
        "ref_text": "",
        "reward": reward,
        "turns": [{"observation": text, "answer": answer, "reward": got} for text, answer, got in turns],
        "end": end,
        "environment/won": float(end == "won"),
        "environment/score": max(0.0, min(1.0, reward)),
        "environment/steps": float(len(turns)),
    }


OPEN = (KITCHEN + HINT, "open door", 0.0)
EAST = ("You open the door.\n\n" + KITCHEN.replace("closed", "open") + HINT, "go east", 0.0)
TAKE = (CORRIDOR + HINT, "take coin", 1.0)
JUNK = ("I did not understand that." + HINT, "the the door coin of", -0.5)

WON = row(0, "won", OPEN, EAST, TAKE)
LOST = row(1, "lost", OPEN, JUNK, ("You step into the well.\n*** You lost! ***", "jump", -1.0))
CUT = row(2, "cut", *[OPEN, JUNK] * 10)


def invented_games(output_dir: Path) -> RunFolder:
    """A run as training in an environment leaves it, with made-up numbers."""
    config = {**CONFIG, "task": {"name": "textworld"}, "environment": {"name": "textworld"}}
    folder = RunFolder.open(output_dir, "coins-ppo-seed0", config, resume="auto")
    for iteration in range(1, 41):
        won = 0.25 + 0.5 * iteration / 40
        shares = {"environment/won/mean": won, "environment/lost/mean": 0.1, "finish/cut": 0.9 - won}
        numbers = {"turns/mean": 14 - 9 * won, "environment/invalid/mean": 0.3 - 0.25 * won}
        folder.append_rollout_info(
            iteration, {"reward/mean": 2 * won - 0.6, "time/iteration_s": 9.0, **shares, **numbers}
        )
    played = {"baseline/random/environment/won/mean": 0.12, "baseline/random/reward/mean": -0.9}
    played |= {"baseline/expert/environment/won/mean": 1.0, "baseline/expert/reward/mean": 1.0}
    for split in ("validation", "test"):
        for epoch, won in ((0, 0.25), (20, 0.5), (40, 0.72)):
            metrics = {"reward/mean": 2 * won - 0.6, "environment/won/mean": won, "turns/mean": 14 - 9 * won}
            folder.append_evaluation(epoch, split, metrics | (played if epoch == 0 else {}))
    folder.write_predictions(0, "val", [row(0, "cut", *[OPEN, JUNK] * 10), LOST])
    folder.write_predictions(40, "val", [row(0, "won", *[OPEN, JUNK] * 3, OPEN, EAST, TAKE), LOST, CUT, WON])
    return folder


def test_the_first_prompt_before_and_after_then_the_best_and_the_worst() -> None:
    best = {**WON, "sample_id": "textworld/validation/3"}
    views = transcripts([CUT, LOST], [{**CUT, "reward": -3.0}, LOST, best], (0, 40))

    assert [(view.title, view.end, view.reward) for view in views] == [
        ("First prompt, iteration 0", "cut", -5.0),
        ("First prompt, iteration 40", "cut", -3.0),
        ("Best of iteration 40", "won", 1.0),
    ]  # the worst of iteration 40 is the first: it is shown already
    assert transcripts([], [WON], (40, 40))[0].title == "First prompt, iteration 40"
    assert transcripts([WON], [{"generated_text": "no episode"}], (0, 40)) == ()


def test_a_long_episode_is_folded_in_its_middle_and_a_short_one_is_whole() -> None:
    long = transcript("Long", CUT)
    (fold,) = long.folded
    assert [len(part) for part in (long.opening, fold.turns, long.closing)] == [3, 14, 3]
    numbers = [turn.number for part in (long.opening, fold.turns, long.closing) for turn in part]
    assert numbers == list(range(1, 21))
    assert fold.reward == 7 * -0.5
    just = transcript("Just", row(0, "cut", *[OPEN] * (2 * SHOWN_TURNS + 1)))
    assert (len(just.opening), just.folded, just.closing) == (7, (), ())


def with_tools(num_turns: int) -> dict[str, Any]:
    """Each turn but the last calls twice; every second result is an error."""
    calls = written([Call("add", {"a": 1, "text": "so"}), Call("now", {})])
    results = "\n<tool_response>\n42\n</tool_response>\n<tool_response>\nError: no clock\n</tool_response>\n"
    turns = [(results if turn else "What is it?", f"Hm. {calls}", 0.1) for turn in range(num_turns - 1)]
    whole = row(0, "ended", *turns, (results, "It is 42.", 1.0))
    for turn, fields in enumerate(whole["turns"]):
        fields |= {"read": 10, "written": 5, "fresh": turn in (0, 2)}
    return whole


def test_calls_stand_with_their_results_and_tokens_are_summed() -> None:
    view = transcript("Tools", with_tools(3))
    first, second, last = view.opening
    assert (first.observation, first.answer) == ("What is it?", "Hm.")
    assert first.calls == (
        ShownCall('add(a=1, text="so")', "42", failed=False),
        ShownCall("now()", "Error: no clock", failed=True),
    )
    assert (second.observation, last.observation, last.answer) == ("", "", "It is 42.")
    assert (view.num_read, view.num_written) == (30, 15)
    assert [turn.fresh for turn in view.opening] == [False, False, True]  # the first always is
    cut = row(0, "cut", ("What is it?", "<tool_call>{</tool_call>", 0.0))
    assert transcript("Cut", cut).opening[0].calls == (ShownCall("{", None, failed=False),)
    assert transcript("Old", cut).num_read is None


def test_a_thousand_turns_are_folded_by_fifties_with_their_sums(tmp_path: Path) -> None:
    view = transcript("Long", with_tools(1000))
    assert view.num_folded == 994 and [len(fold.turns) for fold in view.folded] == [*[50] * 19, 44]
    assert (view.folded[0].num_calls, view.folded[0].num_failed, view.folded[0].reward) == (100, 50, 5.0)
    assert len(transcript("Whole", with_tools(1000), whole=True).opening) == 1000
    folder = RunFolder.open(tmp_path, "long", CONFIG, resume="auto")
    folder.write_predictions(0, "val", [with_tools(1000)])
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "994 more turns 4–53 · 100 calls, 50 failed · +5" in page.text
    assert "tokens 10,000 read, 5,000 written" in page.text and "the context begins anew" in page.text


def test_the_terminal_shows_the_same(tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(episode_view({**with_tools(1000), "split": "train", "weights": 7}))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert lines[0].startswith("textworld/validation/0  train, weights 7  ended  reward 101")
    assert "994 more turns, 1988 calls, 994 of them failed, reward 99.4" in " ".join(lines)
    assert 'add(a=1, text="so")' in lines and "→ Error: no clock" in lines
    assert [line.split() for line in lines if "42." in line] == [["1000", "›", "It", "is", "42.", "+1"]]


def test_a_text_can_not_command_the_terminal() -> None:
    evil = "\x1b]52;c;ZXZpbA==\x07\x9b2J\rno"
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    text = written([Call("add", {"a": evil})])
    shown = {"environment/a\x1b[2J": 1.0, "sample_id": evil, "reward": 0.0, "end": "ended", "prompt_text": ""}
    console.print(episode_view({**shown, "turns": [{"observation": evil, "answer": evil + text}] * 2}))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "�]52;c;ZXZpbA==��2J�no" in out
    assert not any(mark in out for mark in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\r"))


def test_the_page_tells_episodes_in_place_of_samples(tmp_path: Path) -> None:
    page = Page(write_report(invented_games(tmp_path)).read_text(encoding="utf-8"))

    assert "Transcripts of validation" in page.text and "Samples" not in page.text
    assert "First prompt, iteration 40 won" in page.text and "Worst of iteration 40 cut" in page.text
    assert "14 more turns" in page.text
    assert "+ 1" in page.text.replace("+1", "+ 1") and "-0.5" in page.text
    assert "Validation · environment/won/mean 0.25 → 0.72" in page.text
    assert "random 0.12 · expert 1" in page.text
    assert not {"script", "link", "img"} & set(page.tags) and page.addresses == []


def test_what_worlds_and_models_say_is_shown_and_never_run(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "new", CONFIG, resume="auto")
    evil = row(0, "<i>won", ("<script>alert(1)</script>", "<img src=x>{{ 7 * 7 }}", 1.0))
    folder.write_predictions(0, "val", [{**evil, "prompt_text": "<b>&", "environment/<u>": 1.0}])
    page = Page(write_report(folder).read_text(encoding="utf-8"))

    assert {"script", "img", "u"} & set(page.tags) == set()
    for text in ("<script>alert(1)</script>", "<img src=x>{{ 7 * 7 }}", "<b>&", "<u> 1", "<i>won"):
        assert text in page.text


def test_baselines_stand_beside_the_models_numbers() -> None:
    rows = [
        {"epoch": 0, "metrics": {"reward/mean": 0.5, "length": 3.0, "baseline/random/reward/mean": 0.1}},
        {"epoch": 9, "metrics": {"reward/mean": 0.7, "length": 4.0}},
    ]
    evaluations = [Evaluated(row["epoch"], row["metrics"], {"reward/mean": 0.02}) for row in rows]
    table = evaluation_table("val", evaluations)
    assert table.columns == ("random", "iteration 0", "iteration 9")
    assert table.rows == (
        ("reward/mean", ("0.1", "0.500 ± 0.020", "0.700 ± 0.020")),
        ("length", ("–", "3", "4")),
    )
    line = headline("val", rows)
    assert line is not None and line.baselines == (("random", 0.1),)
