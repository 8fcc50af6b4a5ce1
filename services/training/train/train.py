"""`whetstone train [OVERRIDES]`: check the run, start its parts, run the loop, save and report."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import RunError
from contracts.objects import packed_here as objects_here
from contracts.processes.disk import check_room
from contracts.processes.garbage import lasting_objects_left_alone, uncollected
from contracts.secrets.output import say
from contracts.secrets.redaction import without_secrets
from contracts.settings import with_options
from services.config.other_versions import comparable
from services.config.settings import RunSettings
from services.models.adapters import model_in_words
from services.runs import checkpoints, provenance, trace
from services.runs.checkpoint_retention import is_exported
from services.runs.claim import flatten, plain
from services.runs.folder import RunFolder
from services.runs.full_disk import explained
from services.runs.mirror import Mirror, open_mirror
from services.runs.stopping.stopping import StoppedBy
from services.runs.tracking.console import Console, open_console
from services.runs.tracking.identity import identity_of
from services.runs.tracking.mlflow_run import Status
from services.runs.tracking.notice import Event, NotifySettings, notify
from services.runs.tracking.run_log import log_to
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.tracker import Tracker
from services.runs.uploads import GIVE_UP_S, Uploads
from services.terminal.doing import doing
from services.terminal.interrupts import EXIT_INTERRUPTED, Interrupted, StopRequest, on_interruption

if TYPE_CHECKING:
    from reward_servers.user_rewards.trial import Trial

log = logging.getLogger(__name__)

BRING_BACK = "Bring it back, or choose another run_name= for a new run"
ENDS: Mapping[Status, Event] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted"}
ASKED_TO_STOP = "asked to stop: the run ends after saving its state; a second request ends it at once"


def train(settings: RunSettings, *, here: bool = False) -> int:
    """Train one run from its checks to its report; return the exit code.

    Args:
        here: keep engine, learner and rewards in this process, without Ray, and write no report. For models
            that train in seconds.
    """
    with doing("checking settings, model and data"):
        from services.training.preflight import preflight
        from services.training.preflight.checks.environment_checks import environment_warnings
        from services.training.preflight.start_model import opened
        from services.training.sources.annotated_data import with_iterations

        settings = opened(settings)
        checked = preflight.check(settings)
        settings = with_options(with_iterations(settings), checked.chosen)
    check_room(Path(settings.output_dir), "the run", "choose another output_dir=")
    console = open_console()
    with doing("opening the run's folder"):
        folder, mirror = open_folder(settings, console)
    on_interruption(lambda: _last_words(folder))
    log_to(folder.log, console)
    if done := _is_done(folder, settings.iterations, settings.keep_best, settings.stop_when):
        say(f"{folder.path} {done}")
        _require_copied(Uploads(mirror, folder, console.warn).finish() if mirror else None, folder)
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # its bar would break our screen
    for warning in [*checked.warnings, *environment_warnings(settings.environment, settings.algorithm)]:
        console.warn(warning)
    left_out = settings.passes_left_out
    passes = [f"updates leave out passes: {'; '.join(left_out)}"] if left_out else []
    name = model_in_words(settings.model)
    start = [] if name == settings.model.path else [f"the model is {name}"]
    for note in [*start, *checked.notes, *passes]:
        console.note(note)
    tracker = _start_tracker(settings.tracking, settings.resolved(), folder)
    status: Status = "FAILED"
    uploads = Uploads(mirror, folder, console.warn) if mirror else None
    try:
        with trace.written(folder.timeline):
            interrupted = _run(settings, checked.trial, folder, tracker, console, uploads, here)
        status = "KILLED" if interrupted else "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except Exception as error:
        if (reason := explained(error, folder)) is error:
            raise
        raise reason from error
    finally:
        console.stop()
        with doing("writing the report"):
            unreported = None if here else _try_to_report(folder, tracker)
        failure = uploads.finish() if uploads is not None else None  # copy the state first
        _finish_tracking(tracker, folder, status)
        _notify(settings.notify, folder, status, sys.exception(), console)
    if unreported is not None:
        raise explained(unreported, folder)
    _require_copied(failure, folder)
    if interrupted:
        _say_how_to_go_on(folder)
        return EXIT_INTERRUPTED
    _say_what_is_where(folder, settings.keep_best, settings.mirror)
    if settings.tracking.enabled:
        say(f"tracking  mlflow ui --backend-store-uri {tracker.uri}")
    return 0


def open_folder(settings: RunSettings, console: Console) -> tuple[RunFolder, Mirror | None]:
    """Open the run's folder, and restore the mirror's newest checkpoint if the mirror is ahead.

    Raises:
        InputError: as in `RunFolder.open` and `open_mirror`; or no checkpoint is whole.
        RunError: the mirror fails.
    """
    config = without_secrets(plain(settings.resolved()))
    path = Path(settings.output_dir).absolute() / settings.run_name
    now = partial(comparable, config=config, model=settings.model, environment=settings.environment)
    mirror = open_mirror(settings.mirror, path, config, settings.resume, completed=now)
    folder = RunFolder.open(
        *(settings.output_dir, settings.run_name, settings.resolved(), settings.resume), completed=now
    )
    checkpoints.remove_leftovers(folder, console.warn)
    checkpoints.set_damaged_aside(folder, console.warn)
    if settings.keep_best is not None:
        checkpoints.set_damaged_best_aside(folder, console.warn)
    if mirror is not None:
        restored = mirror.restore(folder, console.warn, settings.keep_best)
        if restored is not None:
            console.note(f"restored checkpoint {restored} from {mirror.url}")
        mirror.expect_writable(folder)
    checkpoints.newest_whole(folder, console.warn)
    return folder, mirror


def _require_copied(failure: str | None, folder: RunFolder) -> None:
    if failure:
        raise RunError(f"{failure}. The run is whole in {folder.path}; the same command tries again")


def _run(
    settings: RunSettings,
    trial: "Trial",
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
    uploads: Uploads | None,
    here: bool,
) -> bool:
    """Start the parts and run the loop; tell whether it was interrupted."""
    with doing("loading torch" if here else "loading Ray", console.note), uncollected():
        from services.training.train.loop import controller, prepare

        if here:
            from services.training.train.here import service_here
        else:
            from services.cluster.ray_cluster import cluster
            from services.models.files import read_model
            from services.runs.tracking.prometheus import RunMetrics
            from services.training.preflight.capacity.gpu_defaults import fitted
            from services.training.train import launch
            from services.training.train.ray_machine import gpu_machine

    stop = StopRequest(lambda: console.note(ASKED_TO_STOP))
    with contextlib.ExitStack() as ends:
        if here:
            service = service_here(settings)
        else:
            with doing("starting Ray", console.note):
                ends.enter_context(cluster(console.warn))
                watch = ends.enter_context(RunMetrics(settings.run_name, settings.iterations))
            console.on_progress, tracker.on_metrics = watch.progress, watch.log
            if (machine := gpu_machine()).num_gpus:
                settings, _ = fitted(settings, read_model(settings.model), machine)
            meanwhile = partial(prepare, settings.model)
            notes = console.warn, console.note
            service = launch.service(settings, *notes, trial, meanwhile, machine.gpu_bytes)
        clients = ends.enter_context(service)
        tracker.open()
        ends.callback(stop.restore)
        stop.hold()
        try:
            loop = controller(settings, clients, folder, tracker, console, stop, uploads)
            stop.check()
            with lasting_objects_left_alone():
                loop.run()
        except Interrupted:
            return True
    return False


def _start_tracker(tracking: TrackingSettings, config: Mapping[str, Any], folder: RunFolder) -> Tracker:
    latest = checkpoints.latest(folder)
    run_id = checkpoints.read_state(latest[1]).get("tracking_run_id") if latest else None
    # Import it later, because its imports take seconds that the run's parts need.
    tracker = Tracker.start(
        *(tracking, config["output_dir"], config["run_name"], run_id),
        identity=identity_of(folder),
        at_once=False,
    )
    tracker.log_parameters(flatten(config))
    tracker.log_artifact(folder.config_file)
    # In a thread, because digests of large data files take minutes.
    threading.Thread(target=_record_provenance, args=(folder, config, tracker), daemon=True).start()
    return tracker


def _record_provenance(folder: RunFolder, config: Mapping[str, Any], tracker: Tracker) -> None:
    try:
        tracker.log_provenance(provenance.record(folder, config))
        for changed in provenance.changed_since_begin(folder):
            log.warning("%s has changed since this run began. %s", changed, BRING_BACK)
    except OSError as error:  # a missing data file or a full disk, which others report
        log.warning("the run's %s can't be written: %s", folder.provenance.name, error)


def _finish_tracking(tracker: Tracker, folder: RunFolder, status: Status) -> None:
    """Hand the log and, if requested, a finished run's model to the tracker; close the tracker."""
    mlflow_s, what = None, "closing the trackers"
    if folder.log.exists():
        tracker.log_artifact(folder.log)
    wants_model = tracker.settings.enabled and tracker.settings.model
    if wants_model and status == "FINISHED" and folder.model.exists():
        tracker.log_artifact(folder.model)
        mlflow_s, what = GIVE_UP_S, "copying the model into MLflow"
    with doing(what):
        tracker.finish(status, mlflow_s)


def _notify(
    settings: NotifySettings, folder: RunFolder, status: Status, error: BaseException | None, console: Console
) -> None:
    """Send a notice of the run's end to the address in the settings."""
    by = StoppedBy.read(folder) if status == "FINISHED" else None
    event: Event = "stopped_by_rule" if by else ENDS[status]
    with doing("sending a notice"):
        notify(settings, folder, event, str(by or error or ""), console.warn)


def _try_to_report(folder: RunFolder, tracker: Tracker) -> Exception | None:
    """Write the report; return an error instead of raising it, so that it hides no other error."""
    try:
        finish_report(folder, tracker)
    except Exception as error:
        return error
    return None


def finish_report(folder: RunFolder, tracker: Tracker) -> None:
    """Write the report, and hand it to the tracker with the curves, if they exist."""
    from services.runs.report.report import write_report

    tracker.log_artifact(write_report(folder))
    if folder.curves.exists():
        tracker.log_artifact(folder.curves)


def _is_done(
    folder: RunFolder, iterations: int, keep_best: str | None, stop_when: Sequence[str]
) -> str | None:
    """Say what ended the run, and how to continue it; None if it is not finished."""
    finished = max(folder.checkpoints(), default=-1)
    if finished >= iterations and is_exported(folder, iterations, keep_best):
        return f"is done: {iterations} iterations. Raise iterations= to continue."
    by = StoppedBy.read(folder)
    if by and by.rule in stop_when and by.iteration == finished and is_exported(folder, finished, keep_best):
        return f"is done: stop_when ended it after iteration {finished}: {by}. stop_when=[] continues it."
    return None


def _last_words(folder: RunFolder) -> str:
    """Describe the state of a run that was interrupted within an iteration."""
    newest = max(folder.checkpoints(), default=0)
    rows = folder.rollout_info()
    num_lost = max(0, rows[-1]["iteration"] - newest) if rows else 0
    lost = f", {num_lost} iteration{'s' * (num_lost > 1)} after it lost" if num_lost else ""
    if not newest:
        data = folder.data
        kept = f"continues with the results in {_shown(data)}" if data.exists() else "starts again"
        return f"there is no checkpoint yet{lost}; the same command {kept}"
    whole = _shown(folder.checkpoint(newest))
    return f"checkpoint {newest} is whole{lost}; the same command continues from {whole}"


def _say_how_to_go_on(folder: RunFolder) -> None:
    path = _shown(folder.path)
    if objects_here():  # Python objects, which a command can't name
        say(f"\nStopped and saved in {path}. The same call continues from here")
        return
    again = " ".join(sys.argv[1:]) if Path(sys.argv[0]).name.startswith("whetstone") else "train …"
    say(f"\nStopped and saved in {path}. The same command continues from here: whetstone {again}")


def _say_what_is_where(folder: RunFolder, keep_best: str | None, mirror: str | None) -> None:
    if by := StoppedBy.read(folder):
        say(f"\nstopped   after iteration {by.iteration} by {by}; stop_when=[] continues it")
    if folder.report.exists():
        say(f"\nreport    {_shown(folder.report)}")
    say(f"model     {_shown(folder.model)}   (try it: whetstone chat {_shown(folder.path)})")
    if folder.best_model.exists():
        say(f"best      {_shown(folder.best_model)}   (by {keep_best})")
    if mirror:
        say(f"mirror    {mirror}")


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
