"""Mirror: a copy of a run's folder in an object store, or in any other file system of fsspec.

    <mirror>/<run_name>/
        checkpoints/<n>/…       its files, then manifest.json, which is written last and removed first
        checkpoints/<n>/run/…   the run's lines and configuration at that time
        model/  best_model/     files and manifest.json, likewise
        tokens/<n>.jsonl        the same files as in the folder
        everything else         the newest files of the folder

A manifest has the size and SHA-256 of each file. While it exists, none of its files is written. So an
interrupted copy never counts as a checkpoint, and damage is noticed.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from contracts.errors import InputError, RunError, WhetstoneError
from services.runs import checkpoints
from services.runs import claim as run_claim
from services.runs.best import Criterion, best_of
from services.runs.checksums import Files, entry, read_checksums, said_of
from services.runs.folder import SPLITS, Completed, RunFolder

MANIFEST = "manifest.json"
AT_THE_TIME = "run"  # the run's lines, within a checkpoint


class Broken(WhetstoneError):
    """An incomplete or damaged tree in the mirror."""


class Mirror:
    """The mirror of one run.

    Example: `Mirror("s3://bucket/runs", "numbers").complete()` gives `[40, 30]`
    """

    def __init__(self, url: str, run_name: str) -> None:
        """Find the file system of `url`.

        Raises:
            InputError: fsspec does not know the address, or a package for it is not installed.
        """
        import fsspec

        self.url = f"{url.rstrip('/')}/{run_name}"
        is_local = "://" not in url or url.startswith(("file:", "local:"))
        try:
            self._fs, self._root = fsspec.url_to_fs(self.url, **({"auto_mkdir": True} if is_local else {}))
        except (ImportError, ValueError) as error:
            raise InputError(f"mirror={url}: {error}") from None
        self._put: dict[str, tuple[int, int]] = {}  # size and time of single files when copied
        self._spared: set[int] = set()  # best checkpoints that could not be restored

    def refuse_if_inside(self, folder: Path) -> None:
        """Reject a mirror inside the folder that it copies.

        Raises:
            InputError: the mirror is inside.
        """
        from fsspec.implementations.local import LocalFileSystem

        if isinstance(self._fs, LocalFileSystem) and Path(self._root).is_relative_to(folder):
            raise InputError(f"mirror: {self.url} is in the run's own folder; expected another place")

    def expect_writable(self, folder: RunFolder) -> None:
        """Check that the mirror can be written, by copying the run's single files.

        Raises:
            InputError: the mirror can't be written.
        """
        try:
            self.put_files(folder)
        except Exception as error:  # each file system raises its own errors
            raise InputError(
                f"mirror: {self.url} can't be written: {type(error).__name__}: {error}"
            ) from None

    # ---- writing ----

    def put_tree(self, folder: Path, name: str, besides: Mapping[str, bytes] | None = None) -> None:
        """Copy a whole folder, unless the mirror has the same files already.

        Args:
            besides: contents of further files, by their paths within the tree.
        """
        paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        besides = besides or {}
        written = read_checksums(folder) or {}  # so that a file damaged since then is noticed
        files: Files = {
            **{relative: written.get(relative) or said_of(path) for relative, path in paths.items()},
            **{
                relative: entry(len(content), hashlib.sha256(content).hexdigest())
                for relative, content in besides.items()
            },
        }
        manifest = self._path(name, MANIFEST)
        if self._fs.exists(manifest):
            with contextlib.suppress(Broken):
                if self._manifest(name) == files:
                    return
            self._fs.rm_file(manifest)
        for relative, path in paths.items():
            self._fs.put_file(str(path), self._path(name, relative))
        for relative, content in besides.items():
            self._fs.makedirs(self._fs._parent(self._path(name, relative)), exist_ok=True)
            self._fs.pipe_file(self._path(name, relative), content)
        self._fs.pipe_file(manifest, json.dumps({"files": files}, indent=1).encode())

    def put_checkpoint(self, folder: RunFolder, iteration: int, at_the_time: Mapping[str, bytes]) -> None:
        besides = {f"{AT_THE_TIME}/{name}": content for name, content in at_the_time.items()}
        self.put_tree(folder.checkpoint(iteration), f"checkpoints/{iteration}", besides)

    def put_files(self, folder: RunFolder) -> None:
        """Copy the changed files directly in the run's folder, its functions, its data and `best.json`."""
        beside = [folder.best_file] if folder.best_file.exists() else []
        beside += folder.data.glob("*/*.*")  # manifests and annotated.parquet, without the parts
        self._put_changed(folder, [*folder.path.iterdir(), *folder.functions.glob("*.py"), *beside])

    def put_tokens(self, folder: RunFolder) -> None:
        """Copy the changed files of `tokens/`, and delete those that the folder lacks."""
        here = {path.name: path for path in folder.tokens.glob("*.jsonl")}
        self._put_changed(folder, here.values())
        self._fs.invalidate_cache()
        for remote in self._fs.glob(self._path(folder.tokens.name, "*.jsonl")):
            if PurePosixPath(remote).name not in here:
                self._fs.rm_file(remote)

    def _put_changed(self, folder: RunFolder, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.name.startswith(".") or not path.is_file():
                continue
            name, status = path.relative_to(folder.path).as_posix(), path.stat()
            if self._put.get(name) != (status.st_size, status.st_mtime_ns):
                self._fs.put_file(str(path), self._path(name))
                self._put[name] = (status.st_size, status.st_mtime_ns)

    def keep_only(self, iterations: Iterable[int]) -> None:
        """Delete all other checkpoints older than the last of `iterations`, including incomplete ones.

        Keep the checkpoint in the mirror's `best.json`, because a folder that lacks it could not restore it.
        """
        kept = set(iterations)
        last = max(kept, default=0)
        kept |= self._spared | self._named_best()
        for iteration in [n for n in self._checkpoints() if n not in kept and n < last]:
            name = f"checkpoints/{iteration}"
            if self._fs.exists(self._path(name, MANIFEST)):
                self._fs.rm_file(self._path(name, MANIFEST))
            self._fs.rm(self._path(name), recursive=True)

    # ---- reading ----

    def complete(self) -> list[int]:
        """Return the iterations of the complete checkpoints, newest first."""
        return [n for n in self._checkpoints() if self._fs.exists(self._path(f"checkpoints/{n}", MANIFEST))]

    def config(self, within: str = "") -> bytes:
        """Return the run's configuration, or the one in a folder within the mirror.

        Raises:
            Broken: the configuration is missing.
            RunError: the mirror fails.
        """
        return self._read(f"{within}config.yaml")

    def restore(
        self, folder: RunFolder, note: Callable[[str], None], keep_best: str | None = None
    ) -> int | None:
        """Restore the newest complete checkpoint if it is newer than the folder's; return its iteration.

        Restore the best checkpoint first. Otherwise the mirror deletes it after an interrupted start.

        Raises:
            RunError: the mirror fails, or none of its checkpoints can be read; a new start would lose them.
        """
        newest_here = max(folder.checkpoints(), default=-1)
        with self._own_errors("checkpoints"):
            whole = self.complete()
        restored = self._restore_newest(folder, [n for n in whole if n > newest_here], note, keep_best)
        if restored is None and newest_here >= 0 and keep_best is not None:
            self._restore_best(folder, newest_here, folder.evaluations("validation"), note, keep_best)
        if whole and not folder.checkpoints():
            raise RunError(
                f"{self.url}: none of its checkpoints {whole} can be read; the notes above say why. Restore "
                "one there, or choose another run_name= to start again"
            )
        self._spared |= self._named_best() - folder.checkpoints().keys()
        self._fetch_the_rest(folder)
        return restored

    def _restore_newest(
        self, folder: RunFolder, newer: list[int], note: Callable[[str], None], keep_best: str | None
    ) -> int | None:
        for iteration in newer:
            try:
                if keep_best is not None:
                    evaluations = self._evaluations_at(iteration)
                    self._restore_best(folder, iteration, evaluations, note, keep_best)
                self._fetch_checkpoint(folder, iteration)
            except Broken as error:
                note(f"{self.url}/checkpoints/{iteration}: {error}; trying an older one")
                continue
            return iteration
        return None

    def _restore_best(
        self,
        folder: RunFolder,
        newest: int,
        evaluations: list[dict[str, Any]],
        note: Callable[[str], None],
        keep_best: str,
    ) -> None:
        """Restore the best checkpoint before `newest`, if the folder lacks it."""
        here = folder.checkpoints().keys()
        with self._own_errors("checkpoints"):
            among = here | {newest} | {n for n in self.complete() if n < newest}
        best = best_of(Criterion.of(keep_best), evaluations, among=among)
        if best is None or best.iteration >= newest or best.iteration in here:
            return
        try:
            self._fetch_checkpoint(folder, best.iteration)
        except Broken as error:
            self._spared.add(best.iteration)
            note(f"{self.url}/checkpoints/{best.iteration}, the best: {error}; the run continues without it")

    def _evaluations_at(self, iteration: int) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as place:
            self._fetch(f"checkpoints/{iteration}", Path(place), within=f"{AT_THE_TIME}/")
            return RunFolder(Path(place) / AT_THE_TIME).evaluations("validation")

    def _fetch_checkpoint(self, folder: RunFolder, iteration: int) -> None:
        """Copy a checkpoint into the run's folder, and the run's lines at that time if it is the newest.

        Raises:
            Broken: the checkpoint is incomplete or damaged.
            RunError: the mirror fails.
        """
        with checkpoints.appearing_whole(folder.checkpoint(iteration)) as unfinished:
            self._fetch(f"checkpoints/{iteration}", unfinished)
            apart = unfinished / AT_THE_TIME
            if apart.exists() and iteration > max(folder.checkpoints(), default=-1):
                for path in apart.iterdir():
                    if path.name != folder.config_file.name:
                        os.replace(path, folder.path / path.name)
            shutil.rmtree(apart, ignore_errors=True)

    def _fetch(self, name: str, target: Path, within: str = "") -> None:
        for relative, checksum in self._manifest(name).items():
            if not relative.startswith(within):
                continue
            path = target / relative
            if PurePosixPath(relative).is_absolute() or ".." in PurePosixPath(relative).parts:
                raise Broken(f"its manifest names {relative!r}, which is outside of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self._own_errors(f"{name}/{relative}"):
                    self._fs.get_file(self._path(name, relative), str(path))
            except FileNotFoundError:
                raise Broken(f"{relative} is missing") from None
            if said_of(path) != checksum:
                raise Broken(f"{relative} differs from its manifest")

    def _fetch_the_rest(self, folder: RunFolder) -> None:
        """Copy missing files: log, provenance, trackers, episodes, functions, predictions, tokens.

        Copy predictions only if the folder's lines have their evaluation.
        """
        evaluated = [(row["epoch"], split) for split in SPLITS for row in folder.evaluations(split)]
        predictions = [folder.predictions_file(epoch, split) for epoch, split in evaluated]
        wanted = [folder.log, folder.provenance, folder.trackers, folder.episodes, *predictions]
        self._fetch_missing("*", folder.path, {path.name for path in wanted})
        self._fetch_missing(f"{folder.functions.name}/*.py", folder.functions)
        self._fetch_missing(f"{folder.tokens.name}/*.jsonl", folder.tokens)
        for split in ("train", "validation", "test"):
            self._fetch_missing(f"{folder.data.name}/{split}/*", folder.data / split)

    def _fetch_missing(self, pattern: str, place: Path, names: Container[str] | None = None) -> None:
        """Copy the matching files that `place` lacks, with these names or with any."""
        with self._own_errors(pattern), contextlib.suppress(FileNotFoundError):
            for remote in self._fs.glob(self._path(pattern)):
                name = PurePosixPath(remote).name
                if (place / name).exists() or (names is not None and name not in names):
                    continue
                place.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(remote, str(place / f".{name}.tmp"))
                os.replace(place / f".{name}.tmp", place / name)

    def _named_best(self) -> set[int]:
        """Return the iteration in the mirror's `best.json`, if any."""
        with contextlib.suppress(Broken, ValueError, KeyError, TypeError):
            return {int(json.loads(self._read("checkpoints/best.json"))["iteration"])}
        return set()

    def _read(self, name: str) -> bytes:
        """Read a file of the mirror.

        Raises:
            Broken: the file is missing.
            RunError: the mirror fails.
        """
        try:
            with self._own_errors(name):
                content: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            raise Broken(f"{PurePosixPath(name).name} is missing") from None
        return content

    @contextlib.contextmanager
    def _own_errors(self, name: str) -> Iterator[None]:
        """Turn a file system's errors into RunError, except for a missing file."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise RunError(f"{self.url}/{name}: {type(error).__name__}: {error}") from error

    def _manifest(self, name: str) -> Files:
        try:
            files: Files = dict(json.loads(self._read(f"{name}/{MANIFEST}"))["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise Broken(f"its manifest can't be read: {error}") from None
        return files

    def _checkpoints(self) -> list[int]:
        self._fs.invalidate_cache()
        try:
            names = [
                PurePosixPath(path).name for path in self._fs.ls(self._path("checkpoints"), detail=False)
            ]
        except FileNotFoundError:
            return []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def _path(self, *parts: str) -> str:
        return "/".join([self._root, *parts])


def open_mirror(
    url: str | None, folder: Path, config: Mapping[str, Any], resume: str, *, completed: Completed = dict
) -> Mirror | None:
    """Open the mirror of the run in `folder`, without writing; return None if `url` is None.

    Args:
        completed: adds newer options to the configuration in the mirror.

    Raises:
        InputError: the mirror can't be reached, holds a run with another configuration, or holds results and
            `resume` is "never".
        RunError: the mirror can be listed, but reading the configuration fails.
    """
    if url is None:
        return None
    mirror = Mirror(url, folder.name)
    mirror.refuse_if_inside(folder)
    try:
        iterations = mirror.complete()
    except Exception as error:  # each file system raises its own errors
        raise InputError(f"mirror={url} can't be read: {type(error).__name__}: {error}") from None
    if iterations and resume == "never":
        raise InputError(
            f"{mirror.url} already holds this run's results, but resume=never is set. Choose another "
            "run_name=, or resume=auto to continue it."
        )
    there = _config_of(mirror, iterations)
    if there is not None:
        run_claim.refuse_other_config(mirror.url, completed(there), config)
    return mirror


def _config_of(mirror: Mirror, iterations: list[int]) -> dict[str, Any] | None:
    """Return the first configuration that can be read, from a checkpoint or from the run.

    If none can be read, `restore` reports it.
    """
    import yaml

    for place in [*(f"checkpoints/{iteration}/{AT_THE_TIME}/" for iteration in iterations), ""]:
        with contextlib.suppress(Broken, yaml.YAMLError):
            config = yaml.safe_load(mirror.config(place))
            if isinstance(config, dict):
                return config
    return None
