"""Write a run's model card, a README.md with the hub's metadata, from the run's files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contracts.adapters import merging
from services.runs import provenance
from services.runs.changes import change_in, in_words
from services.runs.checkpoint_retention import trained_until
from services.runs.folder import RunFolder
from services.terminal.readable import number
from services.terminal.templates import templates_in

TEMPLATE = "card.md.j2"
SPLIT_TITLES = {"val": "validation", "test": "test"}
MAX_ROWS = 12  # metrics of one split
MAX_STARTS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A metric before and after training.

    Example: `Row("test", "reward/mean", "0.21", "0.93", "+0.72 (± 0.03)")`
    """

    split: str
    metric: str
    before: str
    after: str
    change: str


def write_card(folder: RunFolder, model: Path, has_curves: bool) -> str:
    """Return the text of the card of a run's model in `model`."""
    config = folder.config()
    environment = templates_in(Path(__file__).parent, is_html=False)
    until = _trained_until(folder, model)
    return environment.get_template(TEMPLATE).render(
        metadata=yaml.safe_dump(_metadata(config, model), sort_keys=False, allow_unicode=True).strip(),
        name=folder.path.absolute().name,
        base=merging.in_words(_name(config.get("model"), "path")),
        algorithm=_name(config.get("algorithm"), "name"),
        task=_name(config.get("task"), "name"),
        rewards=", ".join(_names(config.get("reward"))) or "the task's own",
        iterations=until,
        results=[row for split in SPLIT_TITLES for row in results(folder, split, until)],
        has_curves=has_curves,
        starts=provenance.starts(folder)[-MAX_STARTS:],
        settings=yaml.safe_dump(config, sort_keys=False, allow_unicode=True).strip(),
    )


def _trained_until(folder: RunFolder, model: Path) -> int:
    """Return the model's iteration; the run may have continued since."""
    if model.name == "adapter":  # within the model
        model = model.parent
    if (until := trained_until(model)) is not None:
        return until
    if model == folder.best_model and folder.best_file.exists():
        return int(json.loads(folder.best_file.read_text())["iteration"])
    rows = folder.rollout_info()
    return int(rows[-1]["iteration"]) if rows else 0


def results(folder: RunFolder, split: str, until: int) -> list[Row]:
    """Return the metrics of a split's first evaluation and of the one after iteration `until`.

    Return none if that iteration's model was not evaluated, or both evaluations are the same.
    """
    evaluations = [row for row in folder.evaluations(split) if row["epoch"] <= until]
    if len(evaluations) < 2 or evaluations[-1]["epoch"] != until:
        return []
    first, last = evaluations[0], evaluations[-1]
    before, after = first["metrics"], last["metrics"]
    rows = []
    for metric in [key for key in after if _is_number(before.get(key)) and _is_number(after[key])]:
        change = change_in(folder, split, metric, until)
        words = in_words(change) if change is not None else ""
        rows.append(Row(SPLIT_TITLES[split], metric, number(before[metric]), number(after[metric]), words))
    rows.sort(key=lambda row: row.metric != "reward/mean")
    return rows[:MAX_ROWS]


def _metadata(config: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return the card's head for the hub."""
    base = _name(config.get("model"), "path")
    metadata: dict[str, Any] = {
        "library_name": "peft" if (model / "adapter_config.json").exists() else "transformers",
        "tags": ["whetstone", "reinforcement-learning", _name(config.get("algorithm"), "name")],
    }
    if base and not Path(base).exists() and base.count("/") <= 1:
        metadata["base_model"] = base
    return metadata


def _name(value: Any, key: str) -> str:
    return str(value.get(key, "")) if isinstance(value, Mapping) else str(value or "")


def _names(value: Any) -> Sequence[str]:
    parts = value if isinstance(value, list) else [value]
    return [name for part in parts if (name := _name(part, "name"))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
