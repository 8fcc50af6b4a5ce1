"""Merge an adapter into its base once, to a whole model in the cache, under a digest of both.

adapter + base ─▶ ~/.cache/whetstone/merged/DIGEST/   float32 weights, tokenizer, merged_from.json
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contracts.adapters.fingerprint import fingerprint
from contracts.adapters.folder import AdapterFolder, adapter_at
from contracts.errors import InputError
from contracts.network.hub import use_cache_if_unreachable
from contracts.processes.disk import room_for
from contracts.processes.loading import ONE_MODEL_AT_A_TIME

FORM = "1"  # the form of merged folders; with another number they are merged again
TOLD = "merged_from.json"
INSTALL = "pip install 'whetstone[adapters]'"
DEEPEST = 8  # number of adapters on adapters


def whole_model(
    path: str, revision: str | None = None, base: str | None = None, where: str = "model.path"
) -> str:
    """Return `path` itself, or the folder of the merged model if `path` is an adapter.

    Raises:
        InputError: as for `adapter_at` and `merged_folder`.
    """
    adapter = adapter_at(path, revision, base, where)
    return path if adapter is None else str(merged_folder(adapter, where))


def merged_folder(adapter: AdapterFolder, where: str = "model.path", depth: int = 0) -> Path:
    """Return the folder of the merged model; merge it first if needed.

    Raises:
        InputError: peft is not installed, the base does not load or is quantised, the adapter is of another
            base, or the merged model differs from the adapted one.
    """
    setting = f"{where}={adapter.name}"
    below = None if depth == DEEPEST else adapter_at(adapter.base, adapter.base_revision, where="model.base")
    base = adapter.base if below is None else str(merged_folder(below, "model.base", depth + 1))
    revision = adapter.base_revision if below is None else None
    folder = cache() / _digest(adapter, base, revision, setting)
    if (folder / TOLD).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(), room_for(folder.parent):
        if (folder / TOLD).is_file():  # another process was faster, and may be reading it
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as part:
            with ONE_MODEL_AT_A_TIME:
                _merge(adapter, base, revision, Path(part) / "model", setting)
            about = {"adapter": adapter.name, "base": adapter.base}
            (Path(part) / "model" / TOLD).write_text(json.dumps(about, indent=1), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)  # a copy without its file of marks
            os.rename(Path(part) / "model", folder)
    return folder


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait until no other process of this user merges: each merge needs the base's memory."""
    with cache().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file closes
        yield


def in_words(path: str) -> str:
    """Return the model's name for people: adapter and base, if the model was merged from them."""
    try:
        about = json.loads((Path(path) / TOLD).read_text(encoding="utf-8"))
        return f"{about['adapter']} merged into {about['base']}"
    except (OSError, ValueError, LookupError, TypeError):
        return path


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "whetstone" / "merged"


def _digest(adapter: AdapterFolder, base: str, revision: str | None, setting: str) -> str:
    if Path(base).is_dir():
        of_base = fingerprint(Path(base), texts=True)
    else:
        use_cache_if_unreachable()
        from huggingface_hub import snapshot_download

        try:
            commit = Path(snapshot_download(base, revision=revision, allow_patterns=["config.json"])).name
        except Exception as error:  # the hub's client raises about twenty kinds of errors
            raise _no_base(setting, base, error) from None
        of_base = f"{base} {commit}"
    text = f"{FORM} {fingerprint(adapter.folder, texts=True)} {of_base}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _no_base(setting: str, base: str, error: Exception) -> InputError:
    first = str(error).strip().split("\n")[0]
    return InputError(
        f"{setting}: its base {base} can't be loaded: {type(error).__name__}: {first}. Set "
        "model.base=FOLDER_OR_HUB_NAME"
    )


def _merge(adapter: AdapterFolder, base: str, revision: str | None, out: Path, setting: str) -> None:
    if importlib.util.find_spec("peft") is None:
        raise InputError(f"{setting} is an adapter, which needs peft: {INSTALL}")
    from contracts.adapters import applied

    lm = applied.base_model(base, revision, setting)
    merged = applied.merged(lm, adapter, setting)
    merged.save_pretrained(out)
    applied.save_tokenizer(adapter, base, revision, merged, out, setting)
