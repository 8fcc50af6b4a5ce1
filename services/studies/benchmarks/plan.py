"""Plan a benchmark's runs: one for each task, algorithm and seed that has an experiment."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError, did_you_mean
from services.config.compose import choices_of, run_settings
from services.config.other_versions import comparable
from services.config.override_words import parse
from services.config.settings import RunSettings
from services.runs import claim as run_claim
from services.runs.folder import RunFolder
from services.studies.benchmarks.benchmark import Benchmark
from services.training.preflight import preflight
from services.training.train.sweep import Job

ON_SUPERVISED = "_on_supervised"
OURS = {  # overrides set by the benchmark, and the option for each
    "seed": "--seeds",
    "experiment": "--tasks and --algorithms",
    "output_dir": "--out",
    "run_name": "nothing: runs are named <task>-<algorithm>-seed<seed>",
}


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Run of the benchmark, finished or not.

    Example: `PlannedRun("imdb", "ppo", 0, Job(("experiment=imdb_ppo", "seed=0", …), "imdb-ppo-seed0", …))`
    """

    task: str
    algorithm: str
    seed: int
    job: Job

    @property
    def experiment(self) -> str:
        return f"{self.task}_{self.algorithm}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.job.folder)

    def settings(self) -> RunSettings:
        return run_settings(list(self.job.overrides))

    def num_iterations(self) -> int:
        """Return a begun run's number of iterations, which may be set as epochs of its data."""
        settings, there = self.settings(), self.folder.config()
        epochs = settings.data.num_epochs if settings.data is not None else None
        if epochs is None:
            return settings.iterations
        if epochs == (there.get("data") or {}).get("num_epochs"):
            return int(there["iterations"])
        from services.training.sources.annotated_data import with_iterations  # imports pyarrow

        return with_iterations(settings).iterations


def plan(
    benchmark: Benchmark,
    tasks: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    overrides: Sequence[str] = (),
    own_supervised: bool = False,
    without: Sequence[str] = (),
) -> list[PlannedRun]:
    """Return the runs with an experiment, tasks in the user's order, algorithms in the benchmark's.

    Args:
        overrides: `KEY=VALUE` for every run, `WHOSE:KEY=VALUE` for some; WHOSE is a task, an algorithm or
            an experiment.
        own_supervised: runs "on supervised" begin with the model of the benchmark's supervised run of the
            same task and seed, instead of the experiment's model.
        without: experiments to omit, as `TASK_ALGORITHM`.

    Raises:
        InputError: a task or algorithm is unknown or repeated, no run has an experiment, or an override
            sets one of the benchmark's options.
    """
    experiments = set(choices_of("experiment"))
    _check_names("task", tasks, known_tasks(benchmark))
    _check_names("algorithm", algorithms, benchmark.algorithms)
    _check_names("seed", [str(seed) for seed in seeds])
    pairs = [  # supervised runs come before runs that begin with their models
        (task, algorithm) for task in tasks for algorithm in benchmark.algorithms if algorithm in algorithms
    ]
    if without:
        _check_names("experiment", without, [f"{task}_{algorithm}" for task, algorithm in pairs])
    existing = [pair for pair in pairs if "_".join(pair) in experiments - set(without)]
    if not existing:
        raise InputError(
            f"there is no experiment for {', '.join(algorithms)} on {', '.join(tasks)}: expected a file "
            f"such as conf/experiment/{tasks[0]}_{algorithms[0]}.yaml"
        )
    all_overrides = [f"tracking.experiment={benchmark.name}", *overrides]
    scoped = [_scoped(benchmark, text) for text in all_overrides]
    return [
        _planned(task, algorithm, seed, out, scoped, own_supervised)
        for task, algorithm in existing
        for seed in seeds
    ]


def known_tasks(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the benchmark's tasks, and others with an experiment for one of its algorithms."""
    longest_first = sorted(benchmark.algorithms, key=len, reverse=True)
    others = {
        name.removesuffix(f"_{algorithm}")
        for name in choices_of("experiment")
        if (algorithm := next((suffix for suffix in longest_first if name.endswith(f"_{suffix}")), None))
    }
    return (*benchmark.tasks, *sorted(others - set(benchmark.tasks)))


def left_out(tasks: Sequence[str], algorithms: Sequence[str], runs: Iterable[PlannedRun]) -> list[str]:
    """Return the requested experiments that do not exist."""
    there = {run.experiment for run in runs}
    experiments = [f"{task}_{algorithm}" for task in tasks for algorithm in algorithms]
    return [experiment for experiment in experiments if experiment not in there]


def is_finished(folder: RunFolder, iterations: int) -> bool:
    """Return whether the run has made all iterations and saved its model."""
    return folder.model.exists() and max(folder.checkpoints(), default=-1) >= iterations


def remaining(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Check all runs, and return the unfinished ones; start nothing.

    Raises:
        InputError: an experiment's settings, data or model are wrong, or a folder holds a run with other
            settings; the message names every fault.
    """
    waiting, problems = [], dict[str, str]()
    checked = set[str]()
    for run in runs:
        try:
            settings = run.settings()
            if run.folder.config_file.exists():
                config = run_claim.plain(settings.resolved())
                there = comparable(run.folder.config(), config, settings.model, settings.environment)
                run_claim.refuse_other_config(run.folder.path, there, config)
                if is_finished(run.folder, run.num_iterations()):
                    continue
            waiting.append(run)
            if run.experiment not in checked and not _begins_with_another(run, runs):
                checked.add(run.experiment)
                preflight.check(settings)
        except InputError as error:
            problems.setdefault(run.experiment, str(error))
    if problems:
        listed = "\n".join(f"{experiment}: {problem}" for experiment, problem in problems.items())
        raise InputError(
            f"{len(problems)} of {len({run.experiment for run in runs})} experiments can't be run, and none "
            f"was started:\n{listed}\nMend them, or leave them out: --without {','.join(problems)}"
        )
    return waiting


def _begins_with_another(run: PlannedRun, runs: Iterable[PlannedRun]) -> bool:
    """Return whether the run begins with a model that another run has not written yet."""
    models = {f"model.path={quoted(other.folder.model)}" for other in runs}
    return any(override in models for override in run.job.overrides)


def _planned(
    task: str,
    algorithm: str,
    seed: int,
    out: Path,
    scoped: Sequence[tuple[str | None, str]],
    own_supervised: bool,
) -> PlannedRun:
    experiment, name = f"{task}_{algorithm}", f"{task}-{algorithm}-seed{seed}"
    mine = [text for whose, text in scoped if whose in (None, task, algorithm, experiment)]
    overrides = [f"experiment={experiment}"]
    if own_supervised and algorithm.endswith(ON_SUPERVISED):
        model = RunFolder(out / f"{task}-supervised-seed{seed}").model
        mine = [text for text in mine if parse(text).key_or_group != "model.path"]
        overrides.append(f"model.path={quoted(model)}")
    overrides += [*mine, f"seed={seed}", f"output_dir={quoted(out)}", f"run_name={quoted(name)}"]
    return PlannedRun(task, algorithm, seed, Job(tuple(overrides), name, out / name))


def _scoped(benchmark: Benchmark, text: str) -> tuple[str | None, str]:
    """Split an override into its scope (None: all runs) and the override itself.

    Example: "imdb:task.data_files=reviews" gives ("imdb", "task.data_files=reviews"), and
    "task=my.module:Task" gives (None, "task=my.module:Task").
    """
    prefix = re.match(r"(\w+):(?=[\w.+]+=)", text)
    whose, override = (prefix[1], text[prefix.end() :]) if prefix else (None, text)
    tasks, algorithms = known_tasks(benchmark), benchmark.algorithms
    known = {*tasks, *algorithms, *(f"{task}_{algorithm}" for task in tasks for algorithm in algorithms)}
    if whose is not None and whose not in known:
        raise InputError(
            f"{text}: {whose} is not a task, algorithm or experiment of the benchmark"
            f"{did_you_mean(whose, known)}"
        )
    key = parse(override).key_or_group
    if key in OURS:
        raise InputError(f"{text}: the benchmark sets {key}; choose it by {OURS[key]}")
    return whose, override


def _check_names(kind: str, names: Sequence[str], known: Sequence[str] | None = None) -> None:
    for name in names:
        if known is not None and name not in known:
            raise InputError(f"{name}: no {kind} of this benchmark{did_you_mean(name, known)}")
        if names.count(name) > 1:
            raise InputError(f"{kind} {name} is given twice")
    if not names:
        raise InputError(f"expected at least one {kind}")


def quoted(value: object) -> str:
    """Quote a text as a value in Hydra's grammar."""
    escaped = re.sub(r'(\\+)(?="|$)', r"\1\1", str(value)).replace('"', '\\"')
    return f'"{escaped}"'
