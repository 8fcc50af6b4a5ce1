"""Publish a run's model: safetensors, tokenizer, card and curves, into a folder or onto the hub.

run's folder ──▶ staged files (model/*, README.md, learning_curves.png) ──▶ a folder, or one commit on the hub
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from contracts.adapters.folder import CONFIG, check_one_model
from contracts.adapters.merging import in_words
from contracts.errors import InputError, RunError
from contracts.processes.disk import room_for
from services.inference.publishing.card import write_card
from services.runs.folder import RunFolder

# Files that a push replaces, because loaders would read old ones beside the new model.
OF_EARLIER_PUSHES = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*.jinja",
    "adapter/*",
    "adapter_config.json",
]
OF_EARLIER_PUSHES += ["config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json"]
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
FOLDER_SIGNS = ("/", "./", "../", "~")


def is_folder_name(name: str) -> bool:
    """Return whether the name is a folder, which begins with /, ./, ../ or ~, and no hub name.

    >>> is_folder_name("./out"), is_folder_name("me/my-model")
    (True, False)
    """
    return name in (".", "..") or name.startswith(FOLDER_SIGNS)


def model_of(folder: RunFolder, best: bool, merged: bool = False) -> Path:
    """Return the run's model folder; for a trained adapter the adapter's folder, unless `merged`.

    Raises:
        InputError: the run has no such model, its weights are pickles, or only this machine has the base.
    """
    model = folder.best_model if best else folder.model
    check_one_model(model)
    if not merged and (model / "adapter" / CONFIG).is_file():
        model = model / "adapter"
        _check_base(model)
    if not (model / "config.json").is_file() and not (model / "adapter_config.json").is_file():
        wanted = "best_model/, which keep_best= makes" if best else "model/, which a finished run has"
        raise InputError(f"{folder.path} has no {wanted}: nothing was pushed")
    if pickles := sorted(path.name for path in model.iterdir() if path.suffix in PICKLES):
        raise InputError(
            f"{model} holds {', '.join(pickles)}: a pickle can run code where it is loaded. Expected "
            ".safetensors"
        )
    if not any(model.glob("*.safetensors")):
        raise InputError(f"{model} has no .safetensors file: nothing was pushed")
    return model


def _check_base(adapter: Path) -> None:
    """Refuse an adapter whose base is a merged model in this machine's cache."""
    base = _base_of(adapter)
    if in_words(base) != base:
        raise InputError(
            f"{adapter} is an adapter of {in_words(base)}, which only this machine has: merge=true pushes "
            "the whole model"
        )


def _base_of(adapter: Path) -> str:
    return str(json.loads((adapter / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path"))


def stage(folder: RunFolder, model: Path, out: Path) -> None:
    """Copy a model into `out`, with its card and the run's curves."""
    shutil.copytree(model, out, dirs_exist_ok=True)
    has_curves = folder.curves.exists()
    if has_curves:
        shutil.copy2(folder.curves, out / folder.curves.name)
    (out / "README.md").write_text(write_card(folder, model, has_curves), encoding="utf-8")


def to_folder(folder: RunFolder, model: Path, out: Path) -> Path:
    """Write the model with its card into a new or empty folder.

    Raises:
        InputError: the folder holds something.
    """
    out = out.expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not empty: name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with room_for(out):
        stage(folder, model, out)
    return out


def to_hub(folder: RunFolder, model: Path, name: str, private: bool) -> str:
    """Upload the model with its card in one commit; return its address.

    The token comes from `hf auth login` or the variable HF_TOKEN.

    Raises:
        InputError: the hub refuses the name or the token, or only this machine has the adapter's base.
        RunError: the hub can't be reached, or the upload fails.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

    if (model / CONFIG).is_file() and Path(base := _base_of(model)).is_dir():
        raise InputError(
            f"{model} is an adapter of {base}, a folder of this machine: nobody could load it from the hub. "
            "merge=true pushes the whole model"
        )
    api = HfApi(library_name="whetstone")
    try:
        with tempfile.TemporaryDirectory() as place:
            stage(folder, model, Path(place))
            address = api.create_repo(name, private=private or None, exist_ok=True)
            if private and api.repo_info(address.repo_id).private is False:
                raise InputError(
                    f"{name} is there already, and public: nothing was pushed. Expected a new name"
                )
            api.upload_folder(
                repo_id=address.repo_id,
                folder_path=place,
                delete_patterns=OF_EARLIER_PUSHES,
                commit_message=f"Push {folder.path.absolute().name}",
            )
    except HFValidationError as error:
        raise InputError(f"{name}: {error}. A folder is written ./{name}") from None
    except HfHubHTTPError as error:
        raise _refusal(name, error) from None
    except (OSError, HTTPError) as error:  # no network, or a full disk
        raise RunError(f"{name}: the upload failed: {type(error).__name__}: {error}") from None
    return str(address)


def _refusal(name: str, error: Any) -> InputError | RunError:
    status = getattr(error.response, "status_code", None)
    if status in (401, 403):
        return InputError(
            f"{name}: the hub refused ({status}). Set HF_TOKEN to a token that may write there, or type: "
            "hf auth login"
        )
    return RunError(f"{name}: the hub answered {status}: {error}")
