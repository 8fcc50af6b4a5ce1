"""`whetstone score`: any metric or reward over JSON Lines files, without training and without Ray."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.components import find
from contracts.errors import InputError, did_you_mean, there_are
from contracts.scores import MetricValue, Sample
from contracts.whole_texts import json_of
from reward_servers.local import LocalRewardClient
from reward_servers.metrics import METRICS
from reward_servers.rewards import REWARDS
from reward_servers.server import (
    MetricServer,
    check_at_hand,
    check_parts,
    has_reference,
    needs_meta,
    needs_references,
    shown_keys,
)
from reward_servers.settings import Part, parts
from reward_servers.trial import Trial, is_own
from services.doing import doing


def run(argv: Sequence[str]) -> int:
    """Print the values; the exit code.

    Raises:
        InputError: an unknown name or option, a file that can't be used, a sample that can't be scored.
    """
    arguments = _parser().parse_args(argv)
    kind, part = _part(arguments.name, _options(arguments.option), arguments.reward)
    samples = read_samples(Path(arguments.predictions), arguments.references and Path(arguments.references))
    _check_needs(kind, part, samples)
    with doing(f"computing {kind} {part.label} of {len(samples)} texts"):
        values = _metric_values(part, samples) if kind == "metric" else _reward_values(part, samples)
    if arguments.json:
        print(json.dumps({key: {"corpus": v.corpus, "rows": v.rows} for key, v in values.items()}))
    else:
        _print_table(values)
    return 0


def _check_needs(kind: str, part: Part, samples: Sequence[Sample]) -> None:
    """What the component compares with is there for every sample."""
    needed = needs_meta(kind, part)
    for number, sample in enumerate(samples, start=1):
        if needs_references(kind, part) and not has_reference(sample.references):
            given = "only empty ones" if sample.references else "none"
            raise InputError(
                f"{kind} {part.label} compares with references, and sample {number} has {given}: give "
                '--references FILE, a line {"references": ["…"]} for each prediction, none of them empty'
            )
        missing = [key for key in needed if sample.meta.get(key) is None]
        if missing:
            raise InputError(
                f"{kind} {part.label} needs meta data {', '.join(missing)}, and sample {number} has: "
                f"{shown_keys(sample.meta)}. Give it in the prediction's line: "
                f'"meta": {{"{missing[0]}": …}}'
            )


def read_samples(predictions: Path, references: Path | None) -> list[Sample]:
    """One sample a line: `{"prediction": …}`, optionally with prompt, references, meta and group.

    A file of references, if given, has as many lines, each with `references`; a prompt, meta or group there
    fills in where the prediction's line has none. Lines without a group share one where their prompts are
    equal.

    Raises:
        InputError: naming the file, the line, and what is wrong there.
    """
    rows = _json_lines(predictions, required="prediction")
    if references is not None:
        more = _json_lines(references, required="references")
        if len(more) != len(rows):
            raise InputError(
                f"{predictions} has {len(rows)} lines and {references} has {len(more)}; "
                "they belong together line by line"
            )
        rows = [
            {**extra, **row, "references": extra["references"]} for row, extra in zip(rows, more, strict=True)
        ]
    first: dict[str, int] = {}  # of each prompt, its first line
    for line, row in enumerate(rows, start=1):
        prompt = row.get("prompt")
        at = first.setdefault(prompt, line) if prompt and isinstance(prompt, str) else line
        row.setdefault("group", f"line {at}")
    return [_sample(row, predictions, line) for line, row in enumerate(rows, start=1)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone score", description="Compute a metric or a reward over JSON Lines files."
    )
    parser.add_argument("name", metavar="NAME", help="a metric, a reward, or package.module:Class")
    parser.add_argument(
        "--predictions",
        required=True,
        metavar="FILE",
        help='lines {"prediction": "…"}; prompt, meta, group optional',
    )
    parser.add_argument("--references", metavar="FILE", help='lines {"references": ["…"]}, in the same order')
    parser.add_argument("--reward", action="store_true", help="the reward, where a metric has its name too")
    parser.add_argument("--json", action="store_true", help="print JSON, every row included")
    parser.add_argument(
        "--option",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="of the metric or reward",
    )
    return parser


def _options(given: Sequence[str]) -> dict[str, Any]:
    import yaml  # values are typed as in the configuration files: 3 is a number, true a truth value

    options = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option {text}: expected KEY=VALUE, such as min_tokens=10")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"--option {text}: the value is no YAML; quote it: {key}='\"…\"'") from None
    return options


def _part(name: str, options: Mapping[str, Any], as_reward: bool) -> tuple[str, Part]:
    """The component, and whether it is a metric or a reward; where a name is both, a metric unless asked."""
    if ":" in name:
        is_metric = hasattr(find("metric", name, {}), "compute")
    elif name in METRICS or name in REWARDS:
        is_metric = name in METRICS
    else:
        near = did_you_mean(name, METRICS.keys() | REWARDS.keys())
        raise InputError(
            f"{name}: no such metric or reward{near}\nA class of your own is written package.module:Class."
        )
    kind = "metric" if is_metric and not as_reward else "reward"
    (part,) = parts({"name": name, "options": dict(options)}, where=kind)
    check_parts(kind, [part])
    check_at_hand(kind, [part])
    return kind, part


def _metric_values(part: Part, samples: Sequence[Sample]) -> dict[str, MetricValue]:
    server = MetricServer(part)
    if is_own(part) and (refusal := server.try_out(_trial_of(samples)).refusal):
        raise InputError(refusal)
    return server.compute(samples)


def _trial_of(samples: Sequence[Sample]) -> Trial:
    """The first two: what is wrong for any text is told before all of them are scored."""
    return Trial(tuple(samples[:2]), are_real=True)


def _reward_values(part: Part, samples: Sequence[Sample]) -> dict[str, MetricValue]:
    client = LocalRewardClient([part])
    for warning in client.try_out(_trial_of(samples)):
        print(f"warning: {warning}", file=sys.stderr)
    scores = client.submit(samples).result()
    failures = [score.error for score in scores if score.error is not None]
    if failures:
        raise InputError(
            f"{len(failures)} of {len(samples)} samples could not be scored; the first: {failures[0]}"
        )
    rows = tuple(score.parts[part.label] for score in scores)
    return {part.label: MetricValue(corpus=sum(rows) / len(rows), rows=rows)}


def _json_lines(path: Path, required: str) -> list[dict[str, Any]]:
    # splitlines() would also split inside texts, at U+2028
    lines = _text_of(path).split("\n")
    rows = [_row(path, number, line, required) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError(f'{path}: is empty; expected lines such as {{"{required}": …}}')
    return rows


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: is no UTF-8 (byte 0x{content[error.start]:02x}). If it is Latin-1, "
            f"`iconv -f latin1 -t utf-8 {path.name}` converts it"
        ) from None


def _row(path: Path, number: int, line: str, required: str) -> dict[str, Any]:
    try:
        row = json_of(line, f"{path}, line {number}")
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{path}, line {number}: is nested too deep to be read") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: got {line.strip()[:80]}; expected an object")
    if required not in row:
        raise InputError(f"{path}, line {number}: lacks '{required}'; {there_are(row, 'columns')}")
    return row


def _sample(row: Mapping[str, Any], path: Path, line: int) -> Sample:
    text, prompt = row["prediction"], row.get("prompt", "")
    references, meta, group = row.get("references", []), row.get("meta", {}), row["group"]
    for column, value, kind in (("prediction", text, str), ("prompt", prompt, str), ("meta", meta, dict)):
        if not isinstance(value, kind):
            raise InputError(f"{path}, sample {line}: {column} is {value!r}; expected a {kind.__name__}")
    if not isinstance(references, list) or not all(isinstance(reference, str) for reference in references):
        raise InputError(f"{path}, sample {line}: references is {references!r}; expected a list of texts")
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise InputError(f"{path}, sample {line}: group is {group!r}; expected a text or a whole number")
    return Sample(text, prompt, tuple(references), meta, str(group))


def _print_table(values: Mapping[str, MetricValue]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "all samples", "std", "lowest", "highest", "samples")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, value in values.items():
        rows = value.rows
        measured = (statistics.pstdev(rows), min(rows), max(rows)) if rows else ()
        spread = [*(f"{number:.4f}" for number in measured), str(len(rows))] if rows else []
        table.add_row(key, f"{value.corpus:.4f}", *spread)
    Console().print(table)
