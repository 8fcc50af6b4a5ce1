"""Checks of a model's files, its number of parameters and its window, without torch."""

import difflib
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.network.hub import use_cache_if_unreachable
from learner.settings import ModelSettings
from rollout_workers.engines.choice import SMALL
from services.models.chat_template import json_of
from services.models.safetensors_files import count_numbers

TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("spiece.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
SMALL_FILES = [
    "config.json",
    "generation_config.json",
    "chat_template*",
    "tokenizer*",
    "special_tokens_map.json",
    "spiece.model",
    "vocab.*",
    "merges.txt",
]
RELATIVE_POSITIONS = ("t5", "mt5", "umt5", "longt5", "switch_transformers")  # no limit to their length
WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
WRITERS = ("CausalLM", "LMHead", "ForConditionalGeneration")
HUB_NAME = re.compile(r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that passed the checks.

    Example: `ModelFiles(Path("gpt2"), Path("gpt2"), {"model_type": "gpt2", …}, num_parameters=124439808)`
    """

    folder: Path
    tokenizer_folder: Path
    config: Mapping[str, Any]
    num_parameters: int | None  # None: the weights are still on the hub

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.config.get("is_encoder_decoder"))

    @property
    def is_small(self) -> bool:
        """Tell whether transformers writes faster than vLLM on a CPU."""
        return self.num_parameters is not None and self.num_parameters <= SMALL

    @property
    def window(self) -> int | None:
        """Return the largest number of tokens that the model reads; None for unbounded positions."""
        if self.config.get("model_type") in RELATIVE_POSITIONS:
            return None
        return self._first_integer(WINDOW_KEYS)

    @property
    def num_layers(self) -> int | None:
        """Return the number of layers; None if the configuration lacks all LAYER_KEYS."""
        return self._first_integer(LAYER_KEYS)

    def _first_integer(self, keys: Sequence[str]) -> int | None:
        inner = self.config.get("text_config", {})
        for key in keys:
            if isinstance(number := self.config.get(key, inner.get(key)), int):
                return number
        return None


def shared_window(model: ModelFiles) -> int | None:
    """Return the joint token limit of prompt and response; None if they share no window."""
    return None if model.is_encoder_decoder else model.window


def read_model(settings: ModelSettings, key: str = "model.path") -> ModelFiles:
    """Check the model's files and read its configuration, without loading the model.

    Args:
        key: the configuration key of its path, for messages.

    Raises:
        InputError: the path is missing or holds no model; weights or tokenizer are missing or cut short;
            the kind of model is unknown, or it writes no text.
    """
    where = f"{key}={settings.path}"
    folder = _folder_of(settings.path, settings.revision, where)
    config = _config_of(folder, where)
    _check_kind(config, where)
    num_parameters = count_parameters(folder, where) if Path(settings.path).is_dir() else None
    if settings.tokenizer is None:
        return ModelFiles(folder, _check_tokenizer(folder, where), config, num_parameters)
    where = f"model.tokenizer={settings.tokenizer}"
    tokenizer_folder = _check_tokenizer(_folder_of(settings.tokenizer, None, where), where)
    return ModelFiles(folder, tokenizer_folder, config, num_parameters)


def count_parameters(folder: Path, where: str) -> int:
    """Count the numbers in the weight files by safetensors' headers or the size of PyTorch's files.

    Raises:
        InputError: there are no weight files, one is missing, or one is cut short.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        parts = _json_of(index, where).get("weight_map")
        if not isinstance(parts, Mapping) or not parts:
            raise InputError(f"{where}: {index.name} names no weights: expected a weight_map")
        return sum(_count_in_safetensors(folder / name, where) for name in sorted(set(parts.values())))
    if (folder / "model.safetensors").exists():
        return _count_in_safetensors(folder / "model.safetensors", where)
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled:
        return sum(file.stat().st_size for file in pickled) // 4
    raise InputError(
        f"{where}: the weights are missing: expected model.safetensors (or its parts and their index) "
        f"or pytorch_model.bin; there is: {_names_in(folder)}"
    )


def _folder_of(path: str, revision: str | None, where: str) -> Path:
    folder = Path(path)
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise InputError(
            f"{where} is a file; expected the folder that holds config.json, weights and tokenizer"
        )
    if path.startswith("~"):
        raise InputError(f"{where}: ~ is not expanded here; write {folder.expanduser()}")
    if not HUB_NAME.match(path):
        raise InputError(
            f"{where}: there is no such folder{_meant(folder)} Expected the folder that holds config.json, "
            "weights and tokenizer, or a name on the hub, such as Qwen/Qwen2.5-0.5B"
        )
    return _folder_from_hub(path, revision, where)


def _meant(folder: Path) -> str:
    """Ask whether a neighbouring folder with a similar name was meant; return "." if there is none."""
    beside = [path.name for path in folder.parent.glob("*/")]
    near = difflib.get_close_matches(folder.name, beside, n=1)
    return f"; did you mean {folder.parent / near[0]}?" if near else "."


def _folder_from_hub(name: str, revision: str | None, where: str) -> Path:
    """Fetch configuration and tokenizer, but no weights, from the hub or its cache."""
    reachable = use_cache_if_unreachable()
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=SMALL_FILES)
    except Exception as error:  # the hub's client raises about twenty kinds, with one meaning for users
        answer = str(error).strip().split("\n")[0]
        reason = (
            f"the hub does not give it: {type(error).__name__}: {answer}"
            if reachable
            else "the hub can't be reached, and its cache on this machine has no such model"
        )
        raise InputError(f"{where}: there is no such folder, and {reason}") from None
    return Path(folder)


def _config_of(folder: Path, where: str) -> dict[str, Any]:
    if not (folder / "config.json").exists():
        inner = folder / "model" / "config.json"
        hint = f"\nIs it a run? Then its model is in {inner.parent}." if inner.exists() else ""
        raise InputError(
            f"{where} is not a model: it has no config.json; there is: {_names_in(folder)}{hint}"
        )
    return _json_of(folder / "config.json", where)


def _check_kind(config: Mapping[str, Any], where: str) -> None:
    kind = config.get("model_type")
    known = _known_kinds()
    if known and kind not in known:
        near = difflib.get_close_matches(str(kind), known, n=1)
        meant = f"; did you mean '{near[0]}'?" if near else ""
        code = " Code that a model brings along is never run." if "auto_map" in config else ""
        raise InputError(
            f"{where}: transformers {version('transformers')} knows no model_type {kind!r} "
            f"(in config.json){meant}{code}"
        )
    classes = config.get("architectures") or []
    if classes and not any(part in name for name in classes for part in WRITERS):
        raise InputError(
            f"{where} is a {classes[0]}; expected a model that writes text, causal (…ForCausalLM, "
            "…LMHeadModel) or sequence-to-sequence (…ForConditionalGeneration)"
        )


def _known_kinds() -> list[str]:
    """Return transformers' model types from one of its files that imports nothing else.

    Importing all of transformers takes seconds. Without the file, return none, because transformers refuses
    an unknown type later.
    """
    package = importlib.util.find_spec("transformers")
    if package is None or not package.submodule_search_locations:
        return []
    file = Path(package.submodule_search_locations[0]) / "models" / "auto" / "auto_mappings.py"
    if not file.exists():
        return []
    spec = importlib.util.spec_from_file_location("transformers_model_types", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(getattr(module, "CONFIG_MAPPING_NAMES", ()))


def _check_tokenizer(folder: Path, where: str) -> Path:
    if not any(all((folder / name).exists() for name in names) for names in TOKENIZER_FILES):
        expected = ", ".join(" and ".join(names) for names in TOKENIZER_FILES)
        raise InputError(
            f"{where}: the tokenizer is missing: expected one of {expected}; there is: {_names_in(folder)}. "
            f"A tokenizer from elsewhere is given by model.tokenizer=FOLDER"
        )
    if "auto_map" in json_of(folder / "tokenizer_config.json"):
        _refuse_own_code(folder, where)
    return folder


def _refuse_own_code(folder: Path, where: str) -> None:
    """Refuse a tokenizer class in the folder's code, because transformers would offer to run it.

    Raises:
        InputError: transformers has no such class.
    """
    import transformers  # takes seconds

    name = str(json_of(folder / "tokenizer_config.json").get("tokenizer_class"))
    if getattr(transformers, name, None) is None:
        raise InputError(
            f"{where}: its tokenizer is a {name}, which transformers {version('transformers')} does not know "
            "(in tokenizer_config.json). Code that a model brings along is never run"
        )


def _count_in_safetensors(file: Path, where: str) -> int:
    if not file.exists():
        raise InputError(f"{where}: {file.name} is missing, which model.safetensors.index.json names")
    try:
        return count_numbers(file)
    except ValueError as error:
        raise InputError(f"{where}: {file.name} {error}. Fetch it again") from None


def _json_of(file: Path, where: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{where}: {file.name} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{where}: {file.name}: expected an object {{…}}, got {type(content).__name__}")
    return content


def _names_in(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:10]) + (" …" if len(names) > 10 else "") or "nothing"
