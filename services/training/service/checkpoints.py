"""Checkpoints by the SDK's paths: tinker://MODEL/weights/NAME and tinker://MODEL/sampler_weights/NAME."""

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from learner.training_service.spec import ModelSpec
from services.training.service.journal import Journal

SCHEME = "tinker://"
TRAINING, SAMPLER = "weights", "sampler_weights"  # parts of paths
KINDS = {TRAINING: "training", SAMPLER: "sampler"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
KEPT_HIDDEN = 8  # unnamed weights for sampling clients, of each model


class Checkpoints:
    """Folders of checkpoints, and their rows in the journal."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal

    def check_name(self, model: str, part: str, name: str, *, overwrite: bool) -> None:
        """Reject a name with other characters, or one that is taken.

        Raises:
            InputError: the name is wrong or taken.
        """
        if not NAME.fullmatch(name):
            raise InputError(
                f"checkpoint {name!r}: expected up to 128 letters, digits, dots, dashes and underscores"
            )
        if not overwrite and self.row(path_of(model, part, name)) is not None:
            raise InputError(
                f"checkpoint {path_of(model, part, name)} exists; expected another name, or overwrite=True"
            )

    def write(self, model: str, part: str, name: str, fill: Callable[[Path], None]) -> Path:
        """Let `fill` write into a draft folder, which then replaces the checkpoint; return the folder.

        A checkpoint with this name stays until the new one is complete.
        """
        final = self._folder / model.replace(":", "-") / part / name
        draft = final.with_name(f".{name}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        fill(draft)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        return final

    def record(
        self, model: str, part: str, name: str, folder: Path, spec: ModelSpec, metadata: Any, hidden: bool
    ) -> str:
        """Record a checkpoint in the journal; return its path. Call this in the transaction of the answer."""
        path = path_of(model, part, name)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        values = (path, model, name, part, str(folder), json.dumps(asdict(spec)), json.dumps(metadata))
        self._journal.write(
            "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?,?,?,?,?,?,?,?)",
            *values,
            time.time(),
            size,
            int(hidden),
        )
        return path

    def forget_hidden(self, model: str) -> None:
        """Remove a model's older unnamed weights."""
        rows = self._journal.rows(
            "SELECT path FROM checkpoints WHERE model = ? AND hidden = 1 ORDER BY made DESC", model
        )
        for row in rows[KEPT_HIDDEN:]:
            self.delete(row["path"])

    def row(self, path: str) -> Mapping[str, Any] | None:
        row = self._journal.row("SELECT * FROM checkpoints WHERE path = ?", path)
        return None if row is None else dict(row)

    def need(self, path: str, part: str) -> Mapping[str, Any]:
        """Return the row of a checkpoint of a kind.

        Raises:
            InputError: there is no such checkpoint.
        """
        row = self.row(path)
        if row is None or row["kind"] != part:
            others = self._journal.rows("SELECT path FROM checkpoints WHERE kind = ? AND hidden = 0", part)
            known = ", ".join(other["path"] for other in others[-3:]) or "none was saved"
            raise InputError(f"there is no checkpoint {path!r} of {part}; the last ones: {known}")
        return row

    def delete(self, path: str) -> bool:
        """Remove a checkpoint; return whether there was one."""
        row = self.row(path)
        if row is None:
            return False
        self._journal.write("DELETE FROM checkpoints WHERE path = ?", path)
        shutil.rmtree(row["folder"], ignore_errors=True)
        return True


def path_of(model: str, part: str, name: str) -> str:
    """Return the SDK's path of a checkpoint.

    >>> path_of("5e:train:0", "weights", "last")
    'tinker://5e:train:0/weights/last'
    """
    return f"{SCHEME}{model}/{part}/{name}"


def spec_of(text: str) -> ModelSpec:
    return ModelSpec(**json.loads(text))
