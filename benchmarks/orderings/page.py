"""docs/results/orderings.md: each ordering's arms and claims, including those not run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.orderings.arms import found
from benchmarks.orderings.claims import LEVEL, Judged, interval_of_mean, judged
from benchmarks.orderings.registry import Claim, Ordering, Registry, registration, require_registered_before

FILE = Path(__file__).parents[2] / "docs" / "results" / "orderings.md"
Values = Mapping[str, Sequence[Mapping[str, Any]]]  # by arm: each finished seed's result
HEADING = """# Orderings, registered before they were run

Hypotheses, arms, seeds, budgets and tests were committed before the first run
(`benchmarks/orderings/registered.yaml`, commit {registered}). Each arm has {num_seeds} seeds. The page
reports failures and successes alike.

Arms of `whetstone train` run in one process on the demo's task: 30 iterations of 64 texts, best reward
1. `test` is the final model's reward on test prompts. `last` is the reward of the last five iterations
(NLPO: within its mask). `gold` is the task's reward if a proxy was paid. Offline arms take 120 steps on
digits; their best reward is 0.75. `sampled` is the reward on new prompts. All claims of one
ordering together are tested at {level:.0%}. Intervals of differences follow from that test.
Intervals of means are 95 %.

"Known before" quotes the registration: the results of earlier pages. Pages that are gone, such as
offline.md, are in the repository's history.

`python -m benchmarks.orderings`; runs at commit {commits}.
"""


def write_page(registry: Registry) -> None:
    """Write the page; the text below the tables stays.

    Raises:
        InputError: a run precedes the commit of the current registrations.
    """
    values, registered = results(registry), registration()
    for by_arm in values.values():
        for runs in by_arm.values():
            for run in runs:
                require_registered_before(run["commit"], registered)
    text = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    _, mark, rest = text.partition("\n## What it says\n")
    FILE.write_text(page(registry, values, registered) + mark + rest, encoding="utf-8")


def results(registry: Registry) -> Mapping[str, Values]:
    """Return the finished runs' results by ordering and arm."""
    return {
        name: {
            arm: [whole for seed in registry.seeds if (whole := found(arm_settings, seed))]
            for arm, arm_settings in ordering.arms.items()
        }
        for name, ordering in registry.orderings.items()
    }


def page(registry: Registry, values: Mapping[str, Values], registered: str) -> str:
    """Return the page as Markdown."""
    runs = [run for by_arm in values.values() for arm in by_arm.values() for run in arm]
    commits = ", ".join(dict.fromkeys(str(run["commit"]) for run in runs)) or "none"
    heading = HEADING.format(
        registered=registered, num_seeds=len(registry.seeds), level=LEVEL, commits=commits
    )
    blocks = [heading.rstrip()]
    for name, ordering in registry.orderings.items():
        blocks += _section(name, ordering, values[name], len(registry.seeds))
    return "\n\n".join(blocks) + "\n"


def _section(name: str, ordering: Ordering, values: Values, num_seeds: int) -> Iterator[str]:
    yield f"## {ordering.asks}"
    yield f'`{name}`. Known before: "{ordering.known}".'
    if not any(values.values()):
        yield "**Not run.**"
        yield "\n".join(f"- {claim.text}, by `{claim.measure}`: not run" for claim in ordering.claims)
        return
    measures = list(dict.fromkeys(claim.measure for claim in ordering.claims))
    head = ["arm", *(f"{measure}, mean ± 95 %" for measure in measures), "seeds", "seconds a run"]
    yield _table(head, [_arm(name, runs, measures, num_seeds) for name, runs in values.items()])
    head = ["claim", "by", "difference", "interval", "Hedges' g", "verdict"]
    yield _table(head, [_claim(claim, values, len(ordering.claims), num_seeds) for claim in ordering.claims])


def _arm(name: str, runs: Sequence[Mapping[str, Any]], measures: Sequence[str], num_seeds: int) -> list[str]:
    seconds = f"{fmean(run['seconds'] for run in runs):.0f}" if runs else "–"
    return [
        name,
        *(_mean(_values(runs, measure)) for measure in measures),
        f"{len(runs)} of {num_seeds}",
        seconds,
    ]


def _claim(claim: Claim, values: Values, num_claims: int, num_seeds: int) -> list[str]:
    first, second = (_values(values[name], claim.measure) for name in claim.pair)
    if min(len(first), len(second)) < num_seeds:  # a test of fewer seeds is not the registered one
        return [claim.text, claim.measure, "–", "–", "–", "not run"]
    result = judged(claim, first, second, num_claims)
    return [claim.text, claim.measure, *_shown(result), result.verdict]


def _shown(result: Judged) -> list[str]:
    """Return difference, interval and effect size as text."""
    difference, width = result.difference, result.half_width
    effect = "–" if result.effect is None else f"{result.effect:+.1f}"
    return [f"{difference:+.3f}", f"{difference - width:+.3f} to {difference + width:+.3f}", effect]


def _values(runs: Sequence[Mapping[str, Any]], measure: str) -> list[float]:
    return [float(run["measures"][measure]) for run in runs if measure in run["measures"]]


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "–"
    return f"{fmean(values):.3f} ± {interval_of_mean(values):.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
