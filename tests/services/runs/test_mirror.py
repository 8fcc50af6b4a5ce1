"""A run's copy elsewhere: whole checkpoints or none, whatever breaks off, and a run that goes on from it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import pytest

from contracts.errors import InputError, RunError
from contracts.settings import build
from services.config.settings import RunSettings
from services.runs import checkpoints
from services.runs import uploads as uploads_module
from services.runs.claim import plain
from services.runs.folder import RunFolder
from services.runs.mirror import Mirror, open_mirror
from services.runs.tracking.console import open_console
from services.runs.uploads import Uploads
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.runs import results

CONFIG = {"seed": 1, "model": {"path": "tiny"}}


def run_in(place: Path, *iterations: int) -> RunFolder:
    """A run's folder with a line, an evaluation and a checkpoint of each iteration."""
    folder = RunFolder.open(place, "run", CONFIG, "auto")
    for iteration in iterations:
        folder.append_rollout_info(iteration, {"reward/mean": iteration / 10})
        folder.append_evaluation(iteration, "val", {"reward/mean": 1 / iteration})
        folder.write_predictions(iteration, "val", [{"reward": iteration}])
        checkpoints.save(folder, iteration, write, {"iteration": iteration})
    return folder


def write(checkpoint: str) -> None:
    (Path(checkpoint) / "shards").mkdir()
    for name in ("policy.safetensors", "shards/0.safetensors", "shards/1.safetensors"):
        (Path(checkpoint) / name).write_bytes(os.urandom(1000))


def copy(folder: RunFolder, url: str) -> Mirror:
    """Send what the mirror has not, as a run does it."""
    mirror = Mirror(url, folder.path.name)
    for iteration in folder.checkpoints().keys() - set(mirror.complete()):
        mirror.put_files(folder)
        mirror.put_checkpoint(folder, iteration, folder.lines_so_far())
    return mirror


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def restored(url: str, place: Path, keep_best: str | None = None) -> tuple[RunFolder, int | None, list[str]]:
    """As a fresh machine does it."""
    folder, notes = RunFolder.open(place, "run", CONFIG, "auto"), list[str]()
    return folder, Mirror(url, "run").restore(folder, notes.append, keep_best), notes


@pytest.fixture(params=["file", "memory", "path"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "file": f"file://{tmp_path}/store",
        "memory": f"memory://{uuid.uuid4()}/deep",
        "path": str(tmp_path / "store"),
    }[request.param]


def test_the_newest_checkpoint_comes_back_as_it_was(url: str, tmp_path: Path) -> None:
    folder = run_in(tmp_path / "here", 2, 4)
    copy(folder, url)

    there, iteration, notes = restored(url, tmp_path / "there")

    assert iteration == 4 and not notes
    assert contents(there.checkpoint(4)) == contents(folder.checkpoint(4))
    assert list(there.checkpoints()) == [4]
    assert there.rollout_info() == folder.rollout_info()
    assert there.evaluations("val") == folder.evaluations("val")
    assert there.predictions(2, "val") == [{"reward": 2}]
    assert restored(url, tmp_path / "there")[1] is None  # it is there already


def test_the_best_one_comes_with_it(url: str, tmp_path: Path) -> None:
    copy(run_in(tmp_path / "here", 2, 4, 6), url)

    there, iteration, _ = restored(url, tmp_path / "there", "val/reward/mean")

    assert iteration == 6 and list(there.checkpoints()) == [2, 6]


BEST = "val/reward/mean"  # of run_in's the first


def test_a_death_between_the_best_and_the_newest_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    copy(run_in(tmp_path / "here", 2, 4, 6), url)
    brought, fetch = [], Mirror._fetch_checkpoint

    def dies_after_one(mirror: Mirror, folder: RunFolder, iteration: int) -> object:
        if brought:
            raise KeyboardInterrupt
        brought.append(iteration)
        return fetch(mirror, folder, iteration)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Mirror, "_fetch_checkpoint", dies_after_one)
        restored(url, tmp_path / "there", BEST)

    there, iteration, _ = restored(url, tmp_path / "there", BEST)
    assert brought == [2] and iteration == 6 and list(there.checkpoints()) == [2, 6]
    assert [row["iteration"] for row in there.rollout_info()] == [2, 4, 6]


def test_a_best_that_is_missing_is_looked_for_though_the_newest_is_there(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), run_in(tmp_path / "here", 2, 4, 6)
    copy(folder, url)
    shutil.rmtree(folder.checkpoint(2))

    assert Mirror(url, "run").restore(folder, print, BEST) is None
    assert list(folder.checkpoints()) == [2, 4, 6]


def test_a_damaged_best_is_told_and_the_newest_comes_without_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    copy(run_in(tmp_path / "here", 2, 4), str(store))
    (store / "run" / "checkpoints" / "2" / "policy.safetensors").write_bytes(b"x")

    there, iteration, notes = restored(str(store), tmp_path / "there", BEST)

    assert iteration == 4 and list(there.checkpoints()) == [4]
    assert len(notes) == 1 and "2, the best: policy.safetensors differs from its manifest" in notes[0]


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_best_that_is_not_here_is_not_forgotten_there(overwritten: bool, tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), run_in(tmp_path / "here", 2, 4, 6)
    folder.best_file.write_text('{"iteration": 2}')
    mirror = copy(folder, url)
    for iteration in (2, 4):
        shutil.rmtree(folder.checkpoint(iteration))
    if overwritten:  # this start didn't bring it, and takes another for the best
        mirror.restore(folder, print, None)
        folder.best_file.write_text('{"iteration": 6}')
        mirror.put_files(folder)

    mirror.keep_only(folder.checkpoints())
    assert mirror.complete() == [6, 2]


def test_a_checkpoint_that_was_damaged_here_comes_back_whole(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), run_in(tmp_path / "here", 2, 4)
    copy(folder, url)
    before = contents(folder.checkpoint(4))
    (folder.checkpoint(4) / "policy.safetensors").write_bytes(b"x")

    checkpoints.set_damaged_aside(folder, lambda text: None)
    assert Mirror(url, "run").restore(folder, print) == 4

    assert contents(folder.checkpoint(4)) == before and not checkpoints.damage(folder.checkpoint(4))
    assert len(checkpoints.damaged(folder)) == 1


def test_what_was_damaged_before_it_was_copied_is_no_whole_copy(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), run_in(tmp_path / "here", 2, 4)
    spoilt = folder.checkpoint(4) / "policy.safetensors"
    spoilt.write_bytes(bytes(1000))  # of the same size
    copy(folder, url)

    there, iteration, notes = restored(url, tmp_path / "there")

    assert iteration == 2 and list(there.checkpoints()) == [2]
    assert "policy.safetensors differs from its manifest" in notes[0]


def test_lines_that_are_no_text_come_back_as_they_were(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), run_in(tmp_path / "here", 2)
    with (folder.path / "rollout_info.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    copy(folder, url)

    there, _, _ = restored(url, tmp_path / "there")

    assert (there.path / "rollout_info.jsonl").read_bytes().endswith(b"\xff\n")
    assert [row["iteration"] for row in there.rollout_info()] == [2]


def test_where_no_checkpoint_can_be_read_nothing_begins_anew(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", run_in(tmp_path / "here", 2, 4)
    copy(folder, str(store))
    for iteration in (2, 4):
        (store / "run" / "checkpoints" / str(iteration) / "policy.safetensors").unlink()

    with pytest.raises(RunError, match=r"none of its checkpoints \[4, 2\] can be read.*run_name="):
        restored(str(store), tmp_path / "there")
    assert Mirror(str(store), "run").restore(folder, print) is None  # this one has its own


@pytest.mark.parametrize("method", ["ls", "exists", "cat_file", "get_file", "glob"])
def test_what_a_file_system_raises_is_told_as_the_mirrors(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    copy(run_in(tmp_path / "here", 2), url)
    mirror, there = Mirror(url, "run"), RunFolder.open(tmp_path / "there", "run", CONFIG, "auto")

    def fails(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(mirror._fs, method, fails)
    with pytest.raises(RunError, match=r"run/.*: PermissionError: not yours"):
        mirror.restore(there, print)
    if method == "cat_file":
        with pytest.raises(RunError, match=r"config\.yaml: PermissionError"):
            open_mirror(url, tmp_path / "new" / "run", CONFIG, "auto")


def test_a_configuration_that_is_not_there_is_read_from_an_older_checkpoint(tmp_path: Path) -> None:
    store = tmp_path / "store"
    copy(run_in(tmp_path / "here", 2, 4), str(store))
    (store / "run" / "checkpoints" / "4" / "run" / "config.yaml").unlink()

    with pytest.raises(InputError, match="another configuration"):
        open_mirror(str(store), tmp_path / "there" / "run", CONFIG | {"seed": 2}, "auto")


def test_what_a_start_says_of_its_mirror_has_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    open_console().warn("https://ada:pw@host/runs/checkpoints/4: damaged")
    assert capsys.readouterr().out == "warning: https://***@host/runs/checkpoints/4: damaged\n"


def test_lines_are_those_of_the_checkpoint_though_the_run_wrote_on(url: str, tmp_path: Path) -> None:
    folder = run_in(tmp_path / "here", 2)
    mirror = copy(folder, url)
    folder.append_rollout_info(3, {"reward/mean": 0.3})
    mirror.put_files(folder)

    there, _, _ = restored(url, tmp_path / "there")
    assert [row["iteration"] for row in there.rollout_info()] == [2]


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "a file less", "a byte", "outside"])
def test_what_is_not_whole_is_not_taken(damage: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for written in (2, 4):
        copy(run_in(tmp_path / "here", written), str(store))
    checkpoint = store / "run" / "checkpoints" / "4"
    manifest, file = checkpoint / "manifest.json", checkpoint / "shards" / "1.safetensors"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_bytes(manifest.read_bytes()[:-40])
    elif damage == "a file less":
        file.unlink()
    elif damage == "a byte":
        first, *others = file.read_bytes()
        file.write_bytes(bytes([first ^ 1, *others]))
    else:
        listing = json.loads(manifest.read_text())
        listing["files"]["../../../elsewhere"] = listing["files"]["policy.safetensors"]
        manifest.write_text(json.dumps(listing))

    there, iteration, notes = restored(str(store), tmp_path / "there")

    assert iteration == 2 and list(there.checkpoints()) == [2]
    assert len(notes) == (0 if damage == "no manifest" else 1)
    assert [row["iteration"] for row in there.rollout_info()] == [2]


SLOW = """
import sys, time
from pathlib import Path
import fsspec
from fsspec.implementations.local import LocalFileSystem
from services.runs.mirror import Mirror
from services.runs.folder import RunFolder

class Slow(LocalFileSystem):
    protocol = "slow"

    def __init__(self):
        super().__init__(auto_mkdir=True)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("slow://"))

    def put_file(self, *paths, **options):
        super().put_file(*paths, **options)
        print("put", flush=True)
        time.sleep(0.5)

fsspec.register_implementation("slow", Slow)
folder = RunFolder(Path(sys.argv[1]))
Mirror("slow://" + sys.argv[2], "run").put_checkpoint(folder, 4, folder.lines_so_far())
"""


def test_a_copy_that_is_killed_half_way_is_not_taken_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", run_in(tmp_path / "here", 2)
    mirror = copy(folder, str(store))
    run_in(tmp_path / "here", 4)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder.path), str(store)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == ["put\n"] * 2
    child.send_signal(signal.SIGKILL)
    child.communicate()

    assert (store / "run" / "checkpoints" / "4").exists()  # half of it
    there, iteration, notes = restored(str(store), tmp_path / "there")
    assert iteration == 2 and not notes and list(there.checkpoints()) == [2]

    mirror.put_checkpoint(folder, 4, folder.lines_so_far())
    again, iteration, _ = restored(str(store), tmp_path / "again")
    assert iteration == 4 and contents(again.checkpoint(4)) == contents(folder.checkpoint(4))


def test_what_the_run_forgets_its_mirror_forgets_and_what_broke_off(url: str, tmp_path: Path) -> None:
    folder = run_in(tmp_path / "here", 2, 4, 6)
    mirror = copy(folder, url)
    mirror._fs.rm_file(mirror._path("checkpoints/4/manifest.json"))
    checkpoints.forget(folder, keep=1, spared=2)

    mirror.keep_only(folder.checkpoints())

    assert mirror.complete() == [6, 2] and mirror._checkpoints() == [6, 2]


def test_the_same_is_not_copied_twice_and_another_is(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", run_in(tmp_path / "here", 2)
    mirror = copy(folder, str(store))
    copied = store / "run" / "checkpoints" / "2" / "policy.safetensors"
    before = copied.stat().st_mtime_ns
    mirror.put_checkpoint(folder, 2, folder.lines_so_far())
    assert copied.stat().st_mtime_ns == before

    checkpoints.save(folder, 2, write, {"iteration": 2})
    mirror.put_checkpoint(folder, 2, folder.lines_so_far())
    assert copied.read_bytes() == (folder.checkpoint(2) / "policy.safetensors").read_bytes()


def test_another_run_and_an_unwanted_one_are_refused(url: str, tmp_path: Path) -> None:
    copy(run_in(tmp_path / "here", 2), url)
    there = tmp_path / "there" / "run"

    with pytest.raises(InputError, match=r"run holds a run with another configuration:\n  seed: there 1"):
        open_mirror(url, there, CONFIG | {"seed": 2}, "auto")
    with pytest.raises(InputError, match="already holds this run's results, but resume=never"):
        open_mirror(url, there, CONFIG, "never")
    assert open_mirror(url, there, plain(CONFIG), "auto") is not None
    assert not there.exists()


def test_another_run_is_refused_before_the_first_checkpoint(url: str, tmp_path: Path) -> None:
    Mirror(url, "run").put_files(run_in(tmp_path / "here"))
    there = tmp_path / "there" / "run"

    with pytest.raises(InputError, match=r"run holds a run with another configuration:\n  seed: there 1"):
        open_mirror(url, there, CONFIG | {"seed": 2}, "auto")
    assert open_mirror(url, there, CONFIG, "auto") is not None


def test_what_lies_beside_the_checkpoints_comes_back_where_it_is_missing(url: str, tmp_path: Path) -> None:
    folder = run_in(tmp_path / "here", 2)
    beside = [folder.log, folder.provenance, folder.trackers, folder.episodes]
    beside += [folder.functions / "shorter.py"]
    folder.functions.mkdir()
    for path in beside:
        path.write_text(f"the first {path.name}")
    folder.write_predictions(1, "val", [{"reward": 1}])  # of no evaluation in the run's lines
    copy(folder, url)

    there = RunFolder.open(tmp_path / "there", "run", CONFIG, "auto")
    there.episodes.write_text("newer")
    Mirror(url, "run").restore(there, print)

    copies = [there.path / path.relative_to(folder.path) for path in beside]
    assert [path.read_text() for path in copies] == [
        "newer" if path == there.episodes else f"the first {path.name}" for path in copies
    ]
    assert there.prediction_epochs("val") == [2]
    again = RunFolder.open(tmp_path / "again", "run", CONFIG, "auto")
    Mirror(f"{url}/empty", "run").restore(again, print)  # of which nothing is there
    assert contents(again.path).keys() <= {"config.yaml", ".lock"}


def test_the_mirror_has_the_files_of_tokens_that_the_folder_has(url: str, tmp_path: Path) -> None:
    folder = run_in(tmp_path / "here", 2)
    folder.tokens.mkdir()
    for iteration in (1, 2):
        (folder.tokens / f"{iteration}.jsonl").write_text(f"of {iteration}")
    copies = Uploads(Mirror(url, "run"), folder, print)
    copies.begin(2)
    assert copies.wait() is None
    assert contents(restored(url, tmp_path / "first")[0].tokens) == {"1.jsonl": b"of 1", "2.jsonl": b"of 2"}

    (folder.tokens / "1.jsonl").unlink()  # beyond the folder's limit
    (folder.tokens / "2.jsonl").write_text("again, of 2")
    (folder.tokens / "3.jsonl").write_text("of 3")
    assert copies.finish() is None

    there, _, _ = restored(url, tmp_path / "second")
    assert contents(there.tokens) == {"2.jsonl": b"again, of 2", "3.jsonl": b"of 3"}
    there.truncate_after(2)  # a run resumed at 2 writes the third file anew
    assert contents(there.tokens) == {"2.jsonl": b"again, of 2"}


def test_an_address_that_nobody_knows_and_the_run_itself_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mirror=nowhere://x: Protocol not known: nowhere"):
        open_mirror("nowhere://x", tmp_path / "run", CONFIG, "auto")
    with pytest.raises(InputError, match=r"is in the run's own folder"):
        open_mirror(str(tmp_path), tmp_path / "run", CONFIG, "auto")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"can't be written: NotADirectoryError"):
        Mirror(str(tmp_path / "file"), "run").expect_writable(run_in(tmp_path / "here", 2))


def test_a_mirror_that_fails_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads_module, "TRIES_AFTER_S", (0.0, 0.0))
    store, notes = tmp_path / "store", list[str]()
    folder = run_in(tmp_path / "here", 2)
    copies = Uploads(Mirror(str(store), "run"), folder, notes.append)
    store.touch()  # no folder

    copies.begin(2)
    assert "checkpoint 2 did not arrive at" in (copies.wait() or "") and len(notes) == 1
    store.unlink()
    assert copies.finish() is None
    assert restored(str(store), tmp_path / "there")[1] == 2


def test_a_run_writes_on_while_its_checkpoint_is_copied(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4()}"
    folder = run_in(tmp_path / "here", 2)
    folder.model.mkdir()
    (folder.model / "config.json").write_text("{}")
    copies = Uploads(Mirror(url, "run"), folder, print)
    copies.begin(2)
    folder.append_rollout_info(3, {"reward/mean": 0.3})

    assert copies.finish() is None
    fs, root = fsspec.url_to_fs(f"{url}/run")
    assert fs.exists(f"{root}/model/config.json") and fs.exists(f"{root}/model/manifest.json")
    there, _, _ = restored(url, tmp_path / "there")
    assert [row["iteration"] for row in there.rollout_info()] == [2]


def test_a_run_goes_on_elsewhere_as_if_nothing_had_been(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")

    def train(place: str, iterations: int, mirror: str | None) -> RunFolder:
        options = {
            "algorithm": "ppo",
            "task": {"name": "increasing_numbers", "num_prompts": 8, "num_eval_prompts": 2},
            "model": {"path": str(model)},
            "output_dir": str(tmp_path / place),
            "run_name": "run",
            "iterations": iterations,
            "save_every": 1,
            "evaluate_every": 0,
            "metrics": [],
            "mirror": mirror,
            "rollout": {"prompts_per_iteration": 4, "max_tokens": 6, "deterministic": True},
            "tracking": {"enabled": False},
        }
        return train_here(build(RunSettings, options, where=""))

    url = f"memory://{uuid.uuid4()}"
    straight = train("straight", 3, None)
    train("first", 2, url)
    shutil.rmtree(tmp_path / "first")
    second = train("second", 3, url)

    assert results(second.rollout_info()) == results(straight.rollout_info())
    assert results(second.training_info()) == results(straight.training_info())
    weights = [(run.model / "model.safetensors").read_bytes() for run in (second, straight)]
    assert weights[0] == weights[1]
