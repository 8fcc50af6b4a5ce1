"""Read experiments that combine tasks and algorithms. A file in conf/matrix/ holds their common options.

    shared  <  the task's section  <  the run's section

A run's section overrides the section of the run in `like`. A task's section may add to its runs. An
experiment is called TASK_RUN, for example `imdb_ppo_on_supervised`. Its name gives its task and algorithm,
unless `task.name` or `algorithm.name` is set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = "matrix"  # folder in conf/
Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MatrixExperiment:
    """One cell of a matrix, and the file that holds it.

    Example: `MatrixExperiment(Path("conf/matrix/reviews.yaml"), {"defaults": ["rl4lms/float32", …], …})`
    """

    file: Path
    says: Section  # content of an experiment's file, including `defaults`


@lru_cache(maxsize=1)
def matrix_experiments(conf: Path) -> Mapping[str, MatrixExperiment]:
    """Return the experiments of all files in conf/matrix/ by name."""
    experiments: dict[str, MatrixExperiment] = {}
    for file in sorted((conf / FOLDER).glob("*.yaml")):
        matrix: Any = OmegaConf.to_container(OmegaConf.load(file))
        for task, section in matrix["tasks"].items():
            of_task = dict(section)
            runs = _laid_over(matrix.get("runs", {}), of_task.pop("runs", {}))
            base = _laid_over(matrix["shared"], of_task)
            for run in runs:
                says = _experiment(task, run, _laid_over(base, _section(runs, run)))
                experiments[f"{task}_{run}"] = MatrixExperiment(file, says)
    return experiments


def lay_into(folder: Path, conf: Path, text: str) -> None:
    """Write a file for each matrix experiment that the text names, unless conf/experiment/ has one."""
    for name, cell in matrix_experiments(conf).items():
        if name in text and not (conf / "experiment" / f"{name}.yaml").is_file():
            says = OmegaConf.to_yaml(OmegaConf.create(dict(cell.says)))
            (folder / f"{name}.yaml").write_text(f"# @package _global_\n{says}")


def _section(runs: Section, run: str) -> Section:
    section = dict(runs[run])
    model = section.pop("like", None)
    return section if model is None else _laid_over(_section(runs, model), section)


def _experiment(task: str, run: str, says: Section) -> Section:
    """Add task and algorithm to the defaults, and a run name if these two do not identify the run."""
    choices, body = {"task": task, "algorithm": run}, dict(says)
    for group in choices:
        body[group] = dict(body.get(group, {}))
        choices[group] = body[group].pop("name", choices[group])
    if choices != {"task": task, "algorithm": run}:
        body["run_name"] = f"{task}-{run}-seed${{oc.select:seed,0}}"
    overrides = [{f"override /{group}": name} for group, name in choices.items()]
    return body | {"defaults": [*body.get("defaults", ()), *overrides]}


def _laid_over(below: Section, above: Section) -> Section:
    """Merge nested mappings. Any other value of `above`, including `???`, replaces the value in `below`."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        nested = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _laid_over(under, value) if nested else value  # type: ignore[arg-type]
    return merged
