"""Episodes in the terminal: observations dim, answers bright, calls with their results."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from services.runs.report.transcripts import Fold, ShownTurn, transcript
from services.terminal.readable import number
from services.terminal.visible import visible

LONGEST = 600  # characters of an observation, an answer or a result; the report shows all
END_STYLES = {"won": "green", "lost": "red", "cut": "yellow"}


def episode_view(row: Mapping[str, Any], *, whole: bool = False) -> RenderableType:
    """Return an episode of episodes.jsonl for the terminal.

    Args:
        whole: show all turns of a long episode, not only the first and the last ones.
    """
    shown = transcript(str(row.get("sample_id", "")), row, whole=whole)
    head = Text.assemble(
        (visible(shown.title), "bold"), f"  {row.get('split', '')}, weights {row.get('weights', '–')}  "
    )
    head.append(shown.end, END_STYLES.get(shown.end, "dim"))
    head.append(f"  reward {number(shown.reward)}", "bold")
    for name, value in shown.measured:
        head.append(f"  {visible(name)} {number(value)}", "dim")
    if shown.num_written is not None:
        head.append(f"  tokens {shown.num_read:,} read, {shown.num_written:,} written", "dim")
    if shown.comment:
        head.append(f"\n{_cut(shown.comment)}", "italic")
    turns = Table.grid(padding=(0, 1), expand=True)
    turns.add_column(justify="right", style="dim", width=4)
    turns.add_column(ratio=1)
    turns.add_column(justify="right")
    for turn in shown.opening:
        _add(turns, turn)
    if shown.folded:
        turns.add_row("⋮", _folded(Fold(tuple(turn for fold in shown.folded for turn in fold.turns))), "")
    for turn in shown.closing:
        _add(turns, turn)
    return Padding(Group(head, turns), (0, 0, 1, 0))


def _add(turns: Table, turn: ShownTurn) -> None:
    text = Text()
    if turn.fresh:
        text.append("the context begins anew\n", "yellow")
    if turn.observation:
        text.append(f"{_cut(turn.observation)}\n", "dim")
    if turn.answer or not turn.calls:
        text.append(f"{visible(turn.role)} " if turn.role else "", "yellow")
        text.append(f"› {_cut(turn.answer) or 'nothing'}\n", "bold")
    for call in turn.calls:
        text.append(f"{_cut(call.text)}\n", "cyan")
        if call.result is not None:
            text.append(f"  → {_cut(call.result)}\n", "red" if call.failed else "dim")
    text.rstrip()
    earned = turn.reward or 0.0
    sign, style = ("+", "green") if earned > 0 else ("", "red")
    turns.add_row(str(turn.number), text, Text(f"{sign}{number(earned)}", style) if earned else "")


def _folded(fold: Fold) -> Text:
    text = f"{len(fold.turns)} more turns"
    text += f", {fold.num_calls} calls" if fold.num_calls else ""
    text += f", {fold.num_failed} of them failed" if fold.num_failed else ""
    text += f", reward {number(fold.reward)}" if fold.reward else ""
    return Text(text, "dim italic")


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST:,} more characters)"
