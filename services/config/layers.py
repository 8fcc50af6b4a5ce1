"""List the files that make up a run's configuration, in order; later files win.

conf/cluster/default.yaml, …  <  conf/train.yaml  <  the experiment's bases  <  the experiment
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from services.config.matrix import MatrixExperiment, matrix_experiments

SUFFIX, OWN = ".yaml", "of_ones_own"  # ending of an experiment's file, and Hydra's name for the user's own
OF_A_MODEL = ("tokenizer", "revision")  # keys that belong to the model in the same file


def layers(conf: Path, overrides: list[str]) -> list[str]:
    """Return the places of the files in the configuration folder, in the order in which Hydra merges them.

    Example: `[…, "train", "experiment/rl4lms/float32", …, "experiment/commongen_ppo"]`
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        defaults = hydra.config_loader.compute_defaults_list("train", overrides, RunMode.RUN).defaults
    places = [layer.config_path for layer in defaults]
    return [place for place in places if place is not None and not place.startswith("hydra/")]


def file_of(conf: Path, layer: str, experiment: str) -> Path:
    """Return the file of a layer: the user's `experiment`, a matrix, or a file in conf/."""
    if layer == f"experiment/{OWN}":
        return Path(experiment)
    cell = _of_matrix(conf, layer)
    return conf / f"{layer}{SUFFIX}" if cell is None else cell.file


def said(conf: Path, layer: str, experiment: str) -> Any:
    """Return the content of a layer's file, without its bases."""
    cell = _of_matrix(conf, layer)
    return (
        OmegaConf.to_container(OmegaConf.load(file_of(conf, layer, experiment)))
        if cell is None
        else cell.says
    )


def _of_matrix(conf: Path, layer: str) -> MatrixExperiment | None:
    group, _, name = layer.partition("/")
    if group != "experiment" or (conf / f"{layer}{SUFFIX}").is_file():
        return None
    return matrix_experiments(conf).get(name)


def forget_replaced_models(tree: DictConfig, layers_said: Iterable[Any]) -> None:
    """Drop a model's tokenizer and revision if a later layer sets only another model.

    They belong to the model in the same file, and another model has its own.
    """
    path, lost = None, set[str]()
    for content in layers_said:
        model = content.get("model") if isinstance(content, Mapping) else None
        if not isinstance(model, Mapping):
            continue
        if model.get("path") not in (None, "???", path):
            if path is not None:
                lost |= set(OF_A_MODEL)
            path = model["path"]
        lost -= model.keys()
    for key in lost:
        tree.model.pop(key, None)
