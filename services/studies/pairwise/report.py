"""Report a comparison as JSON and as Markdown."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reward_servers.chat_models.chat_model import ChatModel
from services.runs.json_lines import without_nan, write_atomically
from services.studies.pairwise.outcome import Judged, as_row, first_shown, outcome
from services.studies.pairwise.question import Question
from services.terminal.readable import number

SMALLEST_P = 0.001
NOTE = """\
Each pair was judged in both orders, and is won where both say so. A tie counts as half of A's share. p is the
two-sided sign test's, for one criterion alone, of prompts won against prompts lost; of several pairs of a
prompt most decide."""


def summary(a: str, b: str, rows: Sequence[Judged], question: Question, model: ChatModel) -> dict[str, Any]:
    """Return the figures without the texts."""
    problems = Counter(row.problem for row in rows if row.problem)
    per_criterion = {}
    for criterion in question.criteria:
        figures = outcome(rows, criterion)
        more = {"num": figures.num, "share_won": figures.share_won}
        per_criterion[criterion] = {
            **asdict(figures),
            **more,
            "first_shown": asdict(first_shown(rows, criterion)),
        }
    return {
        "a": a,
        "b": b,
        "model": model.name,
        "url": model.shown_url,
        "body": dict(model.body),
        "template": question.template,
        "num_prompts": len({(row.pair.id, row.pair.prompt) for row in rows}),
        "num_pairs": len(rows),
        "num_judged": sum(row.verdicts is not None for row in rows),
        "num_same_text": sum(row.pair.a == row.pair.b for row in rows),
        "num_not_understood": problems["not understood"],
        "num_without_reply": problems["no reply"],
        "criteria": per_criterion,
    }


def write(judgement: dict[str, Any], rows: Sequence[Judged], out: Path) -> list[Path]:
    """Write judgement.json with every prompt, and judgement.md for people."""
    whole = {**judgement, "prompts": [as_row(row) for row in rows]}
    text = json.dumps(without_nan(whole), indent=1, ensure_ascii=False)
    return [
        write_atomically(out / "judgement.json", text + "\n"),
        write_atomically(out / "judgement.md", to_markdown(judgement)),
    ]


def to_markdown(judgement: dict[str, Any]) -> str:
    """Return a table with a row for each criterion, seen from A."""
    head = [
        "criterion",
        "A wins",
        "ties",
        "B wins",
        "A's share",
        "p",
        "95 % of prompts won",
        "orders disagree",
    ]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    lines += [_line(criterion, figures) for criterion, figures in judgement["criteria"].items()]
    blocks = [
        f"# {judgement['a']} or {judgement['b']}?",
        f"A is {judgement['a']}, B is {judgement['b']}; judged by {judgement['model']}. {counts(judgement)}",
        "\n".join("| " + " | ".join(line) + " |" for line in lines),
        NOTE,
        "\n".join(_of_first(criterion, figures) for criterion, figures in judgement["criteria"].items()),
    ]
    return "\n\n".join(blocks) + "\n"


def counts(judgement: dict[str, Any]) -> str:
    """Say how many pairs are judged, and why others are not.

    >>> print(counts({"num_prompts": 3, "num_pairs": 9, "num_judged": 6, "num_same_text": 1,
    ...     "num_not_understood": 0, "num_without_reply": 0, "replies_from_elsewhere": {"http://a/v1": 2}}))
    6 of 9 pairs of 3 prompts are judged, 1 because both texts are the same; 2 replies are from http://a/v1.
    """
    prompts, pairs = judgement["num_prompts"], judgement["num_pairs"]
    what = f"{prompts} prompts" if pairs == prompts else f"{pairs} pairs of {prompts} prompts"
    message = f"{judgement['num_judged']} of {what} are judged"
    if judgement["num_same_text"]:
        message += f", {judgement['num_same_text']} because both texts are the same"
    if judgement["num_not_understood"] or judgement["num_without_reply"]:
        message += f"; not understood: {judgement['num_not_understood']}"
        message += f", without a reply: {judgement['num_without_reply']}"
    message += "".join(
        f"; {num} replies are from {url}" for url, num in judgement["replies_from_elsewhere"].items()
    )
    return f"{message}."


def _line(criterion: str, figures: dict[str, Any]) -> list[str]:
    share = "–" if figures["share_won"] is None else f"{figures['share_won']:.1%}"
    interval = "–" if figures["interval"] is None else "{:.1%} to {:.1%}".format(*figures["interval"])
    p = f"< {SMALLEST_P}" if figures["p"] < SMALLEST_P else number(figures["p"])
    counted = (figures["wins"], figures["ties"], figures["losses"])
    return [criterion, *map(str, counted), share, p, interval, str(figures["num_disagreements"])]


def _of_first(criterion: str, figures: dict[str, Any]) -> str:
    of = figures["first_shown"]
    return (
        f"- {criterion}: the text shown first was preferred {of['first']} times, the second "
        f"{of['second']} times (p {number(of['p'])})"
    )
