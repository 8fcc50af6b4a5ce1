"""Command lines drawn from all that can be configured: every key, with values that suit it or do not.

What an option takes is read off the settings classes, so that a new one is drawn without a word here.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic.fields import FieldInfo

from contracts.components import find
from contracts.settings import Settings
from learner.algorithms import ALGORITHMS
from learner.algorithms.classes import algorithm_class
from reward_servers.graders import METRICS, REWARDS
from reward_servers.settings import Part, ServerSettings
from rollout_workers.environments import ENVIRONMENTS
from services.config.compose import choices_of
from services.config.data_settings import DataSettings
from services.config.settings import RunSettings
from services.data.tasks import TASKS

TABLES: Mapping[str, Mapping[str, str]] = {
    "algorithm": ALGORITHMS,
    "task": TASKS,
    "environment": ENVIRONMENTS,
}
COMPONENTS = (*TABLES, "reward", "metrics", "data", "measures")
MOST_KEYS = 6  # beside the parts; more of them are more likely to refuse each other
# Of anything that is typed wrong, left empty, far too much, or in no grammar.
WRONG = (
    *("", "null", "[]", "{}", "true", "nan", "inf", "-1", "0", "1e400", "999999999999999999999", "0x10"),
    *("many", "a b", "a=b", "a,b", "[1,[2]]", "{a: 1}", "${seed}", "${oops}", "${oc.env:HOME}", "???"),
    *("'", '"', "[", "}", "\\", "ä ö 漢字", "../..", "/", "~", "x" * 300, "-", "a.b:C", ":", "a:"),
    *("services.config.settings:RunSettings", "[null]", "[true, 1.5]", "{name: 1}", "{name: {name: ppo}}"),
)
KEYS = (
    *("iteration", "rollout", "rollout.", ".rollout", "model.path.path", "seed.x", "a.b.c.d", ""),
    *("algorithm.name", "~seed", "+seed", "++seed", "seed@x", "reward.length.target", "model", "defaults"),
    *("reward_servers.length.replicas", "reward_servers.default.x", "hydra.run.dir", "cluster.name"),
    *(
        "data.reward",
        "environment.name",
        "algorithm.kl.kl",
        "measures.x",
        "metrics.length.weight",
        "experiment",
    ),
)


@dataclass(frozen=True, slots=True)
class Files:
    """Files on the disk that the drawn command lines name."""

    models: Sequence[Path]  # whole ones, of every family
    broken: Sequence[Path]
    prompts: Path  # JSON Lines with the columns prompt and references
    data: Path  # what `whetstone annotate` wrote
    output_dir: Path


@st.composite
def command_lines(draw: DrawFn, files: Files) -> list[str]:
    """Mostly a model and parts that exist, then some options, in any order; now and then something wrong."""
    parts = draw(_parts(files))
    chosen = dict(part.split("=", 1) for part in parts if "=" in part)
    wrong = st.one_of(
        st.builds("{}={}".format, st.sampled_from(sorted(_run_options())), st.sampled_from(WRONG)),
        st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(("1", *WRONG))),
        st.sampled_from(WRONG),
    )
    fitting = _options(chosen)
    more = draw(st.lists(fitting, max_size=MOST_KEYS))
    more += draw(st.lists(wrong, max_size=1)) if draw(st.integers(0, 4)) == 0 else []
    return [*parts, f"output_dir={files.output_dir}", *draw(st.permutations(more))]


@st.composite
def _parts(draw: DrawFn, files: Files) -> list[str]:
    """Overrides that mostly go together, so that checks after the first are reached."""
    algorithm = draw(st.sampled_from(["ppo", "ppo", "grpo", *ALGORITHMS]))
    from_data = algorithm_class(algorithm).traits.learns_from == "data"
    models = [*files.models * 6, *files.broken]
    parts = [f"model.path={draw(st.sampled_from(models))}", f"algorithm={algorithm}"]
    if _once_in(draw, 10):
        parts.append(f"experiment={draw(st.sampled_from(choices_of('experiment')))}")
    if from_data != _once_in(draw, 10):
        parts += [f"data={files.data}"] + ([] if from_data else ["data.share=0.25"])
    if algorithm == "return_conditioned":
        parts.append("environment.target_return=1.0")
    parts += draw(_task(files) if from_data or not _once_in(draw, 3) else _game(files))
    parts += draw(_rewards()) + draw(_metrics())
    if _once_in(draw, 4):
        parts.append(f"cluster={draw(st.sampled_from(choices_of('cluster')))}")
    return [*parts, "rollout.max_tokens=8", "rollout.kv_cache_gib=0.1"]  # the models' windows are short


def _once_in(draw: DrawFn, times: int) -> bool:
    return draw(st.integers(1, times)) == times


def _task(files: Files) -> SearchStrategy[list[str]]:
    data_files = [f"task.data_files={files.prompts}"]
    prompts = ["task=prompts", *data_files, "task.references_column=references", "reward=length"]
    made = st.sampled_from(["increasing_numbers", "dates", "dummy"]).map(lambda name: [f"task={name}"])
    reading = [name for name in TASKS if "data_files" in find("task", name, TASKS).model_fields]
    with_files = st.sampled_from(reading).map(lambda name: [f"task={name}", *data_files])
    named = st.sampled_from(sorted(TASKS)).map(lambda name: [f"task={name}"])
    return st.one_of(st.just(prompts), st.just(prompts), made, made, made, named, with_files)


def _game(files: Files) -> SearchStrategy[list[str]]:
    """Environments with tasks of theirs; games are not made, which takes seconds each."""
    nowhere, read = f"task.games={files.output_dir}/*.z8", f"task.data_files={files.prompts}"
    return st.one_of(
        st.just(["environment=textworld", "task=textworld", nowhere]),
        st.just(["environment=dialogue", "task=prompts", read, "reward=length"]),
        st.sampled_from(["FrozenLake-v1", "Blackjack-v1", "CartPole-v1", "NoSuch-v0"]).map(
            lambda name: ["environment=gymnasium_text", f"environment.id={name}", "task=episodes"]
        ),
        st.just(["environment=textarena", "environment.id=GuessTheNumber-v0", "task=episodes"]),
        st.sampled_from(sorted(ENVIRONMENTS)).map(lambda name: [f"environment={name}"]),
    )


def _rewards() -> SearchStrategy[list[str]]:
    """The task's own, one, or several with weights; now and then any of all."""
    light = st.sampled_from(["length", "increasing_numbers", "dates"]).map(lambda name: [f"reward={name}"])
    several = st.just(["reward=[{name: length, weight: 0.5, label: short, target: 9}, length]"])
    named = st.sampled_from(sorted(REWARDS)).map(lambda name: [f"reward={name}"])
    return st.one_of(st.just([]), light, light, light, several, named, st.just(["reward=[]"]))


def _metrics() -> SearchStrategy[list[str]]:
    light = st.sampled_from(["length", "[length]", "[]", "[{name: length, label: words}, length]"])
    named = st.sampled_from(sorted(METRICS))
    chosen = st.one_of(light, light, named).map(lambda value: [f"metrics={value}"])
    return st.one_of(st.just([]), st.just([]), chosen)


def _options(chosen: Mapping[str, str]) -> SearchStrategy[str]:
    """`KEY=VALUE` of the run's options, and of those that the chosen parts have."""
    choices: dict[str, SearchStrategy[str]] = dict(_run_options())
    for kind, table in TABLES.items():
        if (name := chosen.get(kind)) in table:
            choices |= options_of(find(kind, str(name), table), f"{kind}.")
    for key, kind, table in (("reward", "reward", REWARDS), ("metrics", "metric", METRICS)):
        if (name := chosen.get(key)) in table:
            choices |= options_of(find(kind, str(name), table), f"{key}.")
            choices |= options_of(Part, f"{key}.") if key == "reward" else {}
    return st.sampled_from(sorted(choices)).flatmap(
        lambda key: choices[key].map(lambda value: f"{key}={value}")
    )


@cache
def _run_options() -> dict[str, SearchStrategy[str]]:
    options: dict[str, SearchStrategy[str]] = {}
    for name, field in RunSettings.model_fields.items():
        if name not in COMPONENTS and name != "output_dir":
            options |= _of_field(name, field)
    options.pop("model.path")
    servers = options_of(ServerSettings, "reward_servers.default.")
    return options | servers | options_of(DataSettings, "data.")


def options_of(kind: Any, prefix: str) -> dict[str, SearchStrategy[str]]:
    """Each option of a settings class by its dotted key, with values that its type and bounds allow."""
    options: dict[str, SearchStrategy[str]] = {}
    for name, field in getattr(kind, "model_fields", {}).items():
        options |= _of_field(prefix + name, field)
    return options


def _of_field(key: str, field: FieldInfo) -> dict[str, SearchStrategy[str]]:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Settings):
        return options_of(kind, f"{key}.")
    bounds = {
        name: value
        for constraint in field.metadata
        for name in ("gt", "ge", "lt", "le")
        if (value := getattr(constraint, name, None)) is not None
    }
    return {key: values(kind, bounds)}


def values(kind: Any, bounds: Mapping[str, float]) -> SearchStrategy[str]:
    """Texts of values that such an option takes; of what is no simple type, a few that it may take."""
    origin = get_origin(kind)
    if origin is Literal:
        return st.sampled_from([str(value) for value in get_args(kind)])
    if origin is Annotated:
        return values(get_args(kind)[0], bounds)
    if origin in (Union, types.UnionType):
        return st.one_of([values(member, bounds) for member in get_args(kind)])
    if kind is type(None):
        return st.just("null")
    if kind is bool:
        return st.sampled_from(["true", "false"])
    if kind is int:
        return st.sampled_from(_whole_numbers(bounds)).map(str)
    if kind is float:
        return st.sampled_from(_numbers(bounds)).map(repr)
    if kind is str:
        return st.sampled_from(["auto", "length", "some/name", "a b", "null", "'7'"])
    return st.sampled_from(["[]", "[1]", "[a, b]", "[0.0, 1.0]", "{}", "null"])


def _whole_numbers(bounds: Mapping[str, float]) -> list[int]:
    candidates = (0, 1, 2, 3, 7, 8, 16, 64, 100, 1000, 1_000_000, 10**12)
    return [number for number in candidates if _within(number, bounds)] or [0]


def _numbers(bounds: Mapping[str, float]) -> list[float]:
    candidates = (0.0, 1e-12, 1e-4, 0.25, 0.5, 0.99, 1.0, 1.5, 2.0, 10.0, 1e6, 1e300)
    return [number for number in candidates if _within(number, bounds)] or [0.0]


def _within(number: float, bounds: Mapping[str, float]) -> bool:
    return (
        bounds.get("ge", number) <= number <= bounds.get("le", number)
        and number > bounds.get("gt", -float("inf"))
        and number < bounds.get("lt", float("inf"))
    )
