"""Traits of generation engines, which checks and plans read without loading an engine."""

import importlib.util
from dataclasses import dataclass

from contracts.components import find
from contracts.errors import InputError
from rollout_workers.engines import ENGINES


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Abilities of an engine. A user's engine class has them as its attribute `traits`.

    Example: `EngineTraits("vLLM", package="vllm", serves_adapters=True, hottest=2.0)`
    """

    title: str  # title for people
    package: str | None = None  # a library that the engine needs beside torch and transformers
    runs_encoder_decoders: bool = False
    searches_beams: bool = False
    hottest: float | None = None  # highest temperature; None: any
    takes_arguments: bool = False  # rollout.engine_args
    serves_adapters: bool = False  # serves adapters beside the base model's weights
    masks: bool = False  # NLPO's mask, by `load_mask`
    splits: bool = False  # one model over several GPUs
    receives_weights: bool = False  # receives weights by NCCL, IPC or Gloo, without Ray's objects
    reserves_cache: bool = False  # memory for keys and values, when the engine starts
    steps_ahead: bool = False  # a step may run ahead of its results: rollout_workers/engines/choice.py


BUILT_IN = {
    "vllm": EngineTraits(
        "vLLM",
        package="vllm",
        hottest=2.0,
        takes_arguments=True,
        serves_adapters=True,
        masks=True,
        splits=True,
        receives_weights=True,
        reserves_cache=True,
        steps_ahead=True,
    ),
    "transformers": EngineTraits("transformers", runs_encoder_decoders=True, searches_beams=True, masks=True),
}


def traits_of(engine: str) -> EngineTraits:
    """Return an engine's traits. `auto` has vLLM's, because `auto` may choose it.

    Raises:
        InputError: a user's class can't be imported, or has no traits.
    """
    if engine in BUILT_IN:
        return BUILT_IN[engine]
    if engine == "auto":
        return BUILT_IN["vllm"]
    abilities = getattr(find("engine", engine, ENGINES), "traits", None)
    if not isinstance(abilities, EngineTraits):
        raise InputError(
            f"rollout.engine={engine}: the class has no traits; add a class attribute "
            'traits = EngineTraits("its title", …), from whetstone'
        )
    return abilities


def check_installed(engine: str) -> None:
    """Check that an engine chosen on the command line can be imported.

    Raises:
        InputError: its library is not installed.
    """
    package = None if engine == "auto" else traits_of(engine).package
    if package is not None and importlib.util.find_spec(package) is None:
        title = traits_of(engine).title
        raise InputError(f"--engine {engine}: {title} is not installed; whetstone doctor says how to get it")
