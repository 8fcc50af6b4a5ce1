"""Check before a run, without loading, that a grader's model exists and has the right kind."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from contracts.errors import InputError
from contracts.network.hub import is_reachable

HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)

PreferenceKind = Literal["seq2seq", "causal", "classifier"]


def read_config(model: str) -> dict[str, Any]:
    """Return the `config.json` of a model in a folder, on the hub, or in the hub's cache.

    Raises:
        InputError: the model is unknown, or the folder holds no model.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _config_in(folder, model)
    if not HUB_NAME.match(model):
        raise InputError(f"model={model}: there is no such folder; expected one with config.json and weights")
    return _read(_from_hub(model), model)


def labels_of(config: dict[str, Any]) -> list[str]:
    """Return the names of a classifier's labels, in the order of its outputs.

    >>> labels_of({"id2label": {"1": "positive", "0": "negative"}}), labels_of({})
    (['negative', 'positive'], ['LABEL_0', 'LABEL_1'])
    """
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return [str(named[key]) for key in sorted(named, key=int)]
    return [f"LABEL_{number}" for number in range(int(config.get("num_labels", 2)))]


def check_label(model: str, label_ix: int | None) -> None:
    """Refuse an index without a label; a classifier with a single label needs no index.

    Raises:
        InputError: the index is missing or wrong; the message names the labels.
    """
    labels = labels_of(read_config(model))
    shown = ", ".join(f"{number} {label}" for number, label in enumerate(labels))
    count = f"{len(labels)} label{'s' if len(labels) > 1 else ''}: {shown}"
    if label_ix is None and len(labels) > 1:
        raise InputError(f"label_ix is needed, as the model has {count}")
    if label_ix is not None and label_ix >= len(labels):
        raise InputError(f"label_ix={label_ix}, but the model has {count}")


def preference_kind(model: str) -> PreferenceKind:
    """Return a preference model's kind from its config.json.

    Raises:
        InputError: the model is missing, or of no known kind.
    """
    config = read_config(model)
    named = " ".join(config.get("architectures") or ())
    if "ForSequenceClassification" in named:
        labels = labels_of(config)
        if len(labels) != 1:
            raise InputError(
                f"model={model} has {len(labels)} labels: {', '.join(labels)}; expected one label, as a "
                f"preference is one number. For the probability of a label use learned_reward"
            )
        return "classifier"
    if config.get("is_encoder_decoder"):
        return "seq2seq"
    if any(word in named for word in ("CausalLM", "LMHeadModel")):
        return "causal"
    raise InputError(
        f"model={model} is a {named or 'model without architectures in its config.json'}; expected "
        f"…ForConditionalGeneration, …ForCausalLM or …ForSequenceClassification"
    )


def _config_in(folder: Path, model: str) -> dict[str, Any]:
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" not in names:
        raise InputError(f"model={model} has no config.json; there is: {', '.join(names[:10]) or 'nothing'}")
    if not any(name.endswith((".safetensors", ".bin")) for name in names):
        raise InputError(f"model={model} has no weights: expected model.safetensors")
    if not any(name in names for name in TOKENIZER_FILES):
        raise InputError(f"model={model} has no tokenizer: expected one of {', '.join(TOKENIZER_FILES)}")
    return _read(folder / "config.json", model)


def _read(file: Path, model: str) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"model={model}: config.json can't be read: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"model={model}: config.json holds a {type(config).__name__}; expected an object")
    return config


def _from_hub(model: str) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    if not is_reachable():
        raise InputError(
            f"model={model}: there is no such folder, the hub can't be reached, and its cache on this "
            f"machine has no such model. Give a folder: model=FOLDER"
        )
    try:
        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:  # the hub's client raises about twenty kinds of errors for one fault
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"model={model}: the hub does not give it: {type(error).__name__}: {reason}"
        ) from None
