"""Check a run's files for `whetstone doctor RUN`: which are damaged, and where the run can resume."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from contracts.errors import InputError
from learner.settings import ModelSettings
from services.models.files import read_model
from services.runs import checkpoints
from services.runs.checksums import CHECKSUMS, Damage, damage_in, read_checksums, told
from services.runs.claim import is_held
from services.runs.folder import SPLITS, RunFolder, needs_of
from services.runs.json_lines import read_object, sift
from services.runs.json_lines import told as told_lines
from services.terminal.readable import size
from services.training.preflight.machine import Finding

CHECKPOINTS = "checkpoints"


def examine_run(folder: RunFolder) -> list[Finding]:
    """Check all files that a resumed run or a report reads, in the order of reading."""
    return [
        _config(folder),
        *(_lines(file) for file in folder.jsonl_files() if file.exists()),
        *_predictions(folder),
        *_best(folder),
        *(_checkpoint(path) for path in folder.checkpoints().values()),
        *_remains(folder),
        *(_model(path) for path in (folder.model, folder.best_model) if path.exists()),
    ]


def verdict(folder: RunFolder, findings: Sequence[Finding]) -> str:
    """Say what is damaged and what is safe."""
    damaged = [finding.topic for finding in findings if finding.status == "damaged"]
    whole = [number for number in folder.checkpoints() if f"{CHECKPOINTS}/{number}" not in damaged]
    safe = f"the same command continues from checkpoint {max(whole)}" if whole else "no checkpoint is whole"
    if not folder.checkpoints():
        safe = "there is no checkpoint yet"
    if not damaged:
        return f"This run is whole; {safe}."
    return f"Damaged: {', '.join(damaged)}. Everything else is safe; {safe}."


def _config(folder: RunFolder) -> Finding:
    try:
        folder.config()
    except InputError as error:
        return _damaged(folder.config_file.name, str(error), "put a copy back, such as the mirror's")
    return Finding(folder.config_file.name, "ok", "can be read")


def _lines(file: Path) -> Finding:
    rows, bad = sift(file, needs_of(file.name))
    if bad:
        return _damaged(
            file.name, told_lines(bad), "the next start continues without these lines and keeps a copy"
        )
    return Finding(file.name, "ok", f"{len(rows)} lines")


def _predictions(folder: RunFolder) -> Iterator[Finding]:
    for split in SPLITS:
        epochs, whole = folder.prediction_epochs(split), 0
        for epoch in epochs:
            try:
                folder.predictions(epoch, split)
                whole += 1
            except InputError as error:
                name = folder.predictions_file(epoch, split).name
                yield _damaged(name, str(error), "delete it: only the report shows these texts")
        if whole:
            yield Finding(f"{split} predictions", "ok", f"{whole} evaluations")


def _best(folder: RunFolder) -> Iterator[Finding]:
    if not folder.best_file.exists():
        return
    try:
        best = read_object(folder.best_file).get("iteration")
        yield Finding(f"{CHECKPOINTS}/best.json", "ok", f"checkpoint {best}")
    except InputError as error:
        yield _damaged(f"{CHECKPOINTS}/best.json", str(error), "the next checkpoint rewrites it")


def _checkpoint(path: Path) -> Finding:
    remedy = "the next start sets it aside, and continues from the newest whole checkpoint"
    return _folder(f"{CHECKPOINTS}/{path.name}", path, checkpoints.damage(path), remedy)


def _model(path: Path) -> Finding:
    damages = damage_in(path)
    if not damages:
        try:
            read_model(ModelSettings(path=str(path)))
        except InputError as error:
            damages = [Damage("it", f"can't be used: {error}")]
    return _folder(path.name, path, damages, f"delete {path}; the run's command rewrites it")


def _folder(topic: str, path: Path, damages: Sequence[Damage], remedy: str) -> Finding:
    if damages:
        return _damaged(topic, told(damages), remedy)
    files = [file for file in path.rglob("*") if file.is_file() and file.name != CHECKSUMS]
    amount = f"{len(files)} files, {size(sum(file.stat().st_size for file in files))}"
    if read_checksums(path) is None:
        return Finding(
            topic, "warning", f"{amount}; written without checksums, so only their form was checked"
        )
    return Finding(topic, "ok", f"{amount}, as they were written")


def _remains(folder: RunFolder) -> Iterator[Finding]:
    for path in checkpoints.damaged(folder):
        detail = "was damaged and set aside"
        yield Finding(
            f"{CHECKPOINTS}/{path.name}", "warning", detail, "delete it once you need nothing from it"
        )
    for path in [] if is_held(folder.path) else checkpoints.leftovers(folder):
        detail = "was not finished when a start was killed"
        yield Finding(str(path.relative_to(folder.path)), "warning", detail, "the next start removes it")


def _damaged(topic: str, detail: str, remedy: str) -> Finding:
    return Finding(topic, "damaged", detail, remedy)
