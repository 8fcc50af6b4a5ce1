"""Read a peft adapter's folder without torch: its settings, its base, and its limits."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from contracts.errors import InputError
from contracts.network.hub import is_reachable, use_cache_if_unreachable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MODEL_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
FILES = [CONFIG, WEIGHTS, PICKLE, "tokenizer*", "special_tokens_map.json", "chat_template*", "spiece.model"]
FILES += ["vocab.*", "merges.txt", "added_tokens.json"]
HUB_NAME = re.compile(r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")
TASKS = ("CAUSAL_LM", "SEQ_2_SEQ_LM", None)
TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "r": ((int,), "a whole number"),
    "lora_alpha": ((int, float), "a number"),
    "target_modules": ((str, list), "names of modules, or a regular expression"),
    "base_model_name_or_path": ((str,), "a folder or a hub name"),
    "revision": ((str,), "a text"),
}
# Options of peft that make an adapter more, or other, than a change of the base's weights.
NOT_MERGED = ("layer_replication", "alora_invocation_tokens", "arrow_config", "use_bdlora", "megatron_config")
# Options that merge, but whose matrices are not the low-rank pair that training continues.
NOT_TRAINED = (
    *("use_dora", "modules_to_save", "trainable_token_indices", "lora_bias", "target_parameters"),
    *("use_qalora", "velora_config", "monteclora_config", "kasa_config"),
)
# Options with a rank or a scale for each module, which vLLM's adapters lack.
BY_MODULE = ("rank_pattern", "alpha_pattern")


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A peft adapter whose files are on this machine.

    Example: `AdapterFolder("runs/a/model/adapter", Path("runs/a/model/adapter"), {"r": 16, …}, "gpt2", None)`
    """

    name: str  # the folder or hub name from the user
    folder: Path
    config: Mapping[str, Any]
    base: str  # a folder or a hub name
    base_revision: str | None

    def __str__(self) -> str:
        return f"the adapter {self.name} on {self.base}"

    @property
    def has_tokenizer(self) -> bool:
        return any((self.folder / name).exists() for name in TOKENIZERS)


def check_one_model(model: Path) -> None:
    """Refuse a run's model folder with an adapter for each role, because it also holds the untrained base.

    Raises:
        InputError: the folder holds adapters; the message names them.
    """
    if adapters := sorted(path.parent for path in (model / "adapter").glob(f"*/{CONFIG}")):
        names = ", ".join(map(str, adapters))
        raise InputError(
            f"{model} is the untrained base of an adapter for each role: expected one of these adapters, "
            f"in place of the run: {names}"
        )


def adapter_at(
    path: str,
    revision: str | None = None,
    base: str | None = None,
    where: str = "model.path",
    base_revision: str | None = None,
) -> AdapterFolder | None:
    """Return the adapter at `path`, a folder or a hub name; None without one.

    Args:
        revision: the adapter's on the hub.
        base: the base to take; None: the base in the adapter's configuration.
        where: the option that names `path`, for messages.
        base_revision: the revision of `base` on the hub.

    Raises:
        InputError: the adapter's files can't be used, its base is unknown, or its kind does not merge.
    """
    folder, setting = _folder(path, revision), f"{where}={path}"
    if folder is None:
        if base is not None:
            raise InputError(
                f"model.base={base} is the base of an adapter, and {setting} has no {CONFIG}: expected a "
                "peft folder, or no model.base"
            )
        return None
    _check_files(folder, setting)
    config = _read(folder / CONFIG, setting)
    refuse(setting, _unfit(config))
    if base is None:
        base, base_revision = _base(folder, config, setting), config.get("revision")
    return AdapterFolder(path, folder, config, base, base_revision)


def why_not_trained(adapter: AdapterFolder) -> str:
    """Return the reason why the adapter can't be trained further; "" if it can."""
    config = adapter.config
    if named := [name for name in NOT_TRAINED if config.get(name)]:
        return " and ".join(named)
    if config.get("bias", "none") != "none":
        return f"bias={config['bias']}"
    if config.get("init_lora_weights", True) not in (True, False, "gaussian", "orthogonal"):
        return f"init_lora_weights={config['init_lora_weights']}, which changes the base's own weights"
    return ""


def refuse(setting: str, reason: str) -> None:
    """Raise an InputError with the reason, unless it is empty."""
    if reason:
        raise InputError(f"{setting}: {reason}")


def _folder(path: str, revision: str | None) -> Path | None:
    """Return the folder of the adapter at `path`, from the hub if it is there."""
    folder = Path(path)
    if folder.exists() or not HUB_NAME.match(path):
        return folder if (folder / CONFIG).is_file() else None
    return _from_hub(path, revision)


def _from_hub(name: str, revision: str | None) -> Path | None:
    """Return the cached folder of an adapter on the hub; None if it is not an adapter, or out of reach."""
    use_cache_if_unreachable()
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name, CONFIG, revision=revision), str):
        if not is_reachable():
            return None
        try:
            hf_hub_download(name, CONFIG, revision=revision)
        except Exception:  # the model's reader reports the reason
            return None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the hub's client raises about twenty kinds of errors
        first = str(error).strip().split("\n")[0]
        raise InputError(
            f"{name}: the adapter can't be downloaded: {type(error).__name__}: {first}"
        ) from None


def _check_files(folder: Path, setting: str) -> None:
    if any(True for pattern in MODEL_WEIGHTS for _ in folder.glob(pattern)):
        raise InputError(
            f"{setting} holds a whole model and an adapter ({CONFIG}): expected one of them; move the "
            "adapter into a folder of its own"
        )
    if (folder / WEIGHTS).is_file():
        try:
            safe_open(folder / WEIGHTS, "np")
        except SafetensorError as error:
            raise InputError(f"{setting}: {WEIGHTS} is cut off, or no safetensors file: {error}") from None
        return
    if (folder / PICKLE).exists():
        raise InputError(
            f"{setting} has {PICKLE}: a pickle can run code where it is loaded. Expected {WEIGHTS}; peft "
            "writes it with save_pretrained"
        )
    raise InputError(f"{setting}: an adapter's weights are missing: expected {WEIGHTS} beside {CONFIG}")


def _read(file: Path, setting: str) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{setting}: {CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{setting}: {CONFIG}: expected an object, got {type(config).__name__}")
    for key, (kinds, expected) in TYPES.items():
        value = config.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise InputError(f"{setting}: {CONFIG}: got {key}={value!r:.60}; expected {expected}")
    return config


def _unfit(config: Mapping[str, Any]) -> str:
    kind = config.get("peft_type")
    if kind != "LORA":
        return f"an adapter of peft_type={kind}; expected LORA (with rsLoRA, DoRA and peft's other options)"
    if (task := config.get("task_type")) not in TASKS:
        return f"an adapter of task_type={task}, which writes no text; expected CAUSAL_LM or SEQ_2_SEQ_LM"
    named = [name for name in NOT_MERGED if config.get(name)]
    return f"an adapter with {' and '.join(named)}, which is no change of the base's weights" if named else ""


def _base(folder: Path, config: Mapping[str, Any], setting: str) -> str:
    """Return the base in the adapter's configuration: a folder, from here or the adapter, or a hub name."""
    named = config.get("base_model_name_or_path")
    hint = "set model.base=FOLDER_OR_HUB_NAME"
    if not named:
        raise InputError(f"{setting}: {CONFIG} names no base model (base_model_name_or_path): {hint}")
    if Path(named).is_dir():
        return str(named)
    if (beside := folder / named).is_dir():
        return str(beside)
    if not HUB_NAME.match(named):
        raise InputError(f"{setting}: its base {named} is not there: {hint}")
    return str(named)
