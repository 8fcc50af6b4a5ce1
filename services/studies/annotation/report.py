"""Report an annotation at its end: rewards, failures, and the share of data with a positive advantage."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.table import Table

from contracts.errors import InputError
from services.data.annotated.parts import ANNOTATED, read_table
from services.data.annotated.reward_columns import REWARD
from services.data.annotated.rows import AnnotatedRows, read_annotated
from services.runs.json_lines import read_object, without_nan, write_atomically
from services.runs.tracking.console import Console
from services.studies.annotation.settings import AnnotateSettings
from services.terminal.readable import number
from services.training.sources.prompt_values import ValueFiles, num_failed


def report(folder: Path, settings: AnnotateSettings, console: Console, *, num_cut: int) -> None:
    """Print the report, write summary.json, and draw advantages.png if there are values."""
    table = read_table(folder / ANNOTATED)
    names = [name for name in table.column_names if name.startswith(REWARD)]
    columns = {name.removeprefix(REWARD): _numbers(table[name].to_pylist()) for name in names}
    errors = [error for error in table["error"].to_pylist() if error is not None]
    summary: dict[str, Any] = {
        "num_rows": table.num_rows,
        "num_failed": len(errors),
        "num_cut": num_cut,
        "rewards": {label: _spread(values) for label, values in columns.items()},
    }
    _print_rewards(console, summary["rewards"])
    if errors:
        console.note(
            f"{len(errors)} of {table.num_rows} responses could not be scored, and training leaves them out; "
            f"retry_failed=true tries again. The first: {errors[0]}",
            "warning",
        )
    if num_cut:
        console.note(
            f"{num_cut} of {table.num_rows} responses are longer than rollout.max_tokens="
            f"{settings.rollout.max_tokens} and lose their end"
        )
    if num_empty := _num_empty(table):
        summary["num_empty"] = num_empty
        console.note(
            f"{num_empty} of {table.num_rows} responses have no token but the end; training leaves them out",
            "warning",
        )
    if settings.value is not None:
        summary["value"] = _report_values(folder, console)
        if failed := num_failed(ValueFiles(folder / "value")):
            summary["value"]["num_failed"] = failed
            console.note(
                f"{failed} responses of the reference to validation prompts could not be scored, and the "
                f"value was learned without them; retry_failed=true tries again and learns it anew",
                "warning",
            )
    write_atomically(folder / "summary.json", json.dumps(without_nan(summary), indent=1) + "\n")
    console.note(f"{folder / ANNOTATED}")


def _num_empty(table: pa.Table) -> int:
    """Count responses without a token to learn; 0 if the table has no token column."""
    if "tokens" not in table.column_names:
        return 0
    return int((pc.list_value_length(table["tokens"]).to_numpy() == 0).sum())


def advantages(rows: AnnotatedRows) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return rewards, values and advantages of good responses, and of any rejected ones."""
    assert rows.rewards_M is not None and rows.values_M is not None
    columns = {"reward": rows.rewards_M, "value": rows.values_M, "advantage": rows.rewards_M - rows.values_M}
    masks = {"good": rows.good_M, "rejected": ~rows.good_M}
    return {
        kind: {name: values[mask] for name, values in columns.items()}
        for kind, mask in masks.items()
        if mask.any()
    }


def draw(by_kind: Mapping[str, Mapping[str, NDArray[np.float64]]], file: Path) -> Path:
    """Draw histograms of rewards, values and advantages, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    for place, name in enumerate(("reward", "value", "advantage"), start=1):
        axes = figure.add_subplot(1, 3, place)
        together = np.concatenate([columns[name] for columns in by_kind.values()])
        edges = np.histogram_bin_edges(together, bins=40).tolist()
        for kind, columns in by_kind.items():
            axes.hist(columns[name], bins=edges, alpha=0.6, label=kind)
        axes.set_title(
            f"{name} of responses" if name != "value" else "value of their prompts", fontsize=9, loc="left"
        )
        if name == "advantage":
            axes.axvline(0.0, color="black", linewidth=0.8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if len(by_kind) > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.savefig(file, format="png")
    return file


def _report_values(folder: Path, console: Console) -> dict[str, Any]:
    by_kind = advantages(read_annotated(folder, needs_values=True))
    file = folder / "value" / "errors.json"
    match read_object(file):
        case {
            "best": {
                "held_out": float() | None as held_out,
                "train": float() as train,
                "epoch": int() as epoch,
            } as best,
            "constant_error": float() as constant,
            "num_held_out": int() as num_held_out,
            "num_prompts": int() as num_prompts,
        }:
            pass
        case _:
            raise InputError(f"{file} is damaged; delete it, and `whetstone annotate` makes it anew")
    error, where = held_out, f"{num_held_out} held-out prompts"
    if error is None:
        error, where = train, f"the {num_prompts} prompts that it learned from"
    console.note(
        f"value: squared error {number(error)} on {where} after epoch {epoch}; {number(constant)} by "
        f"always predicting the mean"
    )
    if error >= constant:
        console.note(
            "the value predicts no better than the mean reward: more validation prompts, another "
            "value.head or a higher value.learning_rate may help",
            "warning",
        )
    summary: dict[str, dict[str, Any]] = {}
    for kind, columns in by_kind.items():
        kept = columns["advantage"] > 0
        summary[kind] = {"num": len(kept), "share_kept": float(kept.mean())}
        summary[kind] |= {name: _spread(values) for name, values in columns.items()}
        console.note(
            f"{kind} responses: {int(kept.sum())} of {len(kept)} have a positive advantage "
            f"({kept.mean():.1%}), {1 - kept.mean():.1%} are dropped where only these are learned from"
        )
        if kind == "good" and not kept.any():
            console.note(
                f"no advantage is positive, the highest is {number(float(columns['advantage'].max()))}: "
                "there is nothing that A-LoL could learn from this data",
                "warning",
            )
    console.note(f"{draw(by_kind, folder / 'advantages.png')}")
    return {**summary, "error": best, "constant_error": constant}


def _print_rewards(console: Console, spreads: Mapping[str, Mapping[str, Any]]) -> None:
    if not spreads:
        return
    table = Table("reward", "mean", "std", "lowest", "highest", "scored", "not scored")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, spread in spreads.items():
        values = [number(spread[name]) for name in ("mean", "std", "lowest", "highest")]
        table.add_row(label, *values, str(spread["num"]), str(spread["num_missing"]))
    console.terminal.print(table)


def _spread(values: NDArray[np.float64]) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    summary: dict[str, Any] = {"num": len(known), "num_missing": len(values) - len(known)}
    names = ("mean", "std", "lowest", "highest")
    if not len(known):
        return summary | dict.fromkeys(names)
    measured = (known.mean(), known.std(), known.min(), known.max())
    return summary | {name: float(value) for name, value in zip(names, measured, strict=True)}


def _numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], float)
