"""List the files that a run's configuration is composed of, in order: a later one wins.

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

SUFFIX, OWN = ".yaml", "of_ones_own"  # of an experiment's file, and Hydra's name for the user's own
OF_A_MODEL = ("tokenizer", "revision")  # keys that belong to the model in the same file


def layers(conf: Path, overrides: list[str]) -> list[str]:
    """Return the files' places in the configuration folder, in the order in which Hydra merges them.

    Example: `[…, "train", "experiment/rl4lms/float32", …, "experiment/commongen_ppo"]`
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        found = hydra.config_loader.compute_defaults_list("train", overrides, RunMode.RUN).defaults
    places = [each.config_path for each in found]
    return [place for place in places if place is not None and not place.startswith("hydra/")]


def file_of(conf: Path, layer: str, own: str) -> Path:
    """Return the file of a layer: `own` for the user's experiment, the matrix for a cell of one."""
    if layer == f"experiment/{OWN}":
        return Path(own)
    cell = _of_matrix(conf, layer)
    return conf / f"{layer}{SUFFIX}" if cell is None else cell.file


def said(conf: Path, layer: str, own: str) -> Any:
    """Return a layer's own content, without its bases."""
    cell = _of_matrix(conf, layer)
    return OmegaConf.to_container(OmegaConf.load(file_of(conf, layer, own))) if cell is None else cell.says


def _of_matrix(conf: Path, layer: str) -> MatrixExperiment | None:
    group, _, name = layer.partition("/")
    if group != "experiment" or (conf / f"{layer}{SUFFIX}").is_file():
        return None
    return matrix_experiments(conf).get(name)


def forget_replaced_models(tree: DictConfig, layers_said: Iterable[Any]) -> None:
    """Drop a model's tokenizer and revision where a later layer names only another model.

    They belong to the model in the same file: another model brings its own.
    """
    path, lost = None, set[str]()
    for said in layers_said:
        given = said.get("model") if isinstance(said, Mapping) else None
        if not isinstance(given, Mapping):
            continue
        if given.get("path") not in (None, "???", path):
            if path is not None:
                lost |= set(OF_A_MODEL)
            path = given["path"]
        lost -= given.keys()
    for key in lost:
        tree.model.pop(key, None)
