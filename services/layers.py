"""The files that a run's configuration is laid together of, in order: a later one wins.

conf/algorithm/ppo.yaml, …  <  conf/train.yaml  <  what an experiment is built on  <  the experiment
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

OF_A_MODEL = ("tokenizer", "revision")  # what a file says of the model that it names


def layers(conf: Path, overrides: list[str]) -> list[str]:
    """Return the files by their places in a folder of configuration, as Hydra lays them over each other.

    Example: `[…, "train", "experiment/rl4lms/commongen", "experiment/commongen_ppo"]`
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        found = hydra.config_loader.compute_defaults_list("train", overrides, RunMode.RUN).defaults
    places = [each.config_path for each in found]
    return [place for place in places if place is not None and not place.startswith("hydra/")]


def forget_replaced_models(tree: DictConfig, files: Iterable[Path]) -> None:
    """Drop tokenizer and revision of a model where a file laid over its own names another model alone.

    They belong to the model beside which they stand: the other one brings its own.
    """
    path, lost = None, set[str]()
    for file in files:
        loaded = OmegaConf.to_container(OmegaConf.load(file))
        given = loaded.get("model") if isinstance(loaded, Mapping) else None
        if not isinstance(given, Mapping):
            continue
        if given.get("path") not in (None, "???", path):
            if path is not None:
                lost |= set(OF_A_MODEL)
            path = given["path"]
        lost -= given.keys()
    for key in lost:
        tree.model.pop(key, None)
