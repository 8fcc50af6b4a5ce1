"""`whetstone train [OVERRIDES]`: check everything, start everything, run the loop, leave everything whole."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.disk import check_room
from contracts.errors import RunError
from contracts.output import say
from contracts.redaction import without_secrets
from contracts.rollout import Lease
from services import checkpoints
from services.console import Console, open_console
from services.doing import doing
from services.full_disk import explained
from services.interrupts import EXIT_INTERRUPTED, Interrupted, StopRequest, on_interruption
from services.mirror import Mirror, open_mirror
from services.run_claim import flatten, plain
from services.run_folder import RunFolder
from services.run_log import log_to
from services.settings import RunSettings
from services.tracking import Status, Tracker
from services.uploads import Uploads

if TYPE_CHECKING:
    from reward_servers.trial import Trial
    from services.controller import Clients, Controller
    from services.demonstrations import Demonstrate
    from services.leasing import LeaseSource
    from services.mixed_source import MixedSource
    from services.offline_source import OfflineSource

ASKED_TO_STOP = "asked to stop: it ends as soon as its state is whole and saved; asked again, at once"


def run(argv: Sequence[str]) -> int:
    """The command. Returns its exit code; `-m` or `--multirun` sweeps."""
    with doing("loading the settings"):
        from services.compose import print_help, run_settings

    arguments = list(argv)
    if {"-h", "--help"} & set(arguments):
        return print_help(arguments)
    if {"-m", "--multirun"} & set(arguments):
        from services.sweep import run as sweep

        return sweep([argument for argument in arguments if argument not in ("-m", "--multirun")])
    with doing("reading the configuration"):
        settings = run_settings(arguments)
    return train(settings)


def train(settings: RunSettings) -> int:
    """One run, from its checks to its report."""
    with doing("checking settings, model and data"):
        from services import preflight
        from services.annotated_data import with_iterations
        from services.environment_checks import environment_warnings

        checked = preflight.check(settings)
        settings = with_iterations(settings)
    check_room(Path(settings.output_dir), "the run", "choose another output_dir=")
    console = open_console()
    with doing("opening the run's folder"):
        folder, mirror = open_folder(settings, console)
    on_interruption(lambda: _last_words(folder))
    log_to(folder.log, console)
    if _is_done(folder, settings):
        say(f"{folder.path} is done: {settings.iterations} iterations. iterations= allows for more.")
        _require_copied(Uploads(mirror, folder, console.warn).finish() if mirror else None, folder)
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # it would tear our own screen
    for warning in [*checked.warnings, *environment_warnings(settings)]:
        console.warn(warning)
    tracker = _start_tracker(settings, folder)
    status: Status = "FAILED"
    uploads = Uploads(mirror, folder, console.warn) if mirror else None
    try:
        interrupted = _run_on_cluster(settings, checked.trial, folder, tracker, console, uploads)
        status = "KILLED" if interrupted else "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except Exception as error:
        if (told := explained(error, folder)) is error:
            raise
        raise told from error
    finally:
        console.stop()
        unreported = _try_to_report(folder, tracker)
        tracker.finish(status)
        failure = uploads.finish() if uploads is not None else None
    if unreported is not None:
        raise explained(unreported, folder)
    _require_copied(failure, folder)
    _say_what_is_where(settings, folder, tracker, interrupted)
    return EXIT_INTERRUPTED if interrupted else 0


def open_folder(settings: RunSettings, console: Console) -> tuple[RunFolder, Mirror | None]:
    """The run's folder, with the newest checkpoint of its mirror where that is ahead of it.

    Raises:
        InputError: as `RunFolder.open` and `open_mirror`; or of its checkpoints none is whole.
        RunError: the mirror fails.
    """
    asked = without_secrets(plain(settings.resolved()))
    path = Path(settings.output_dir).absolute() / settings.run_name
    mirror = open_mirror(settings.mirror, path, asked, settings.resume)
    folder = RunFolder.open(
        settings.output_dir, settings.run_name, config=settings.resolved(), resume=settings.resume
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


def _run_on_cluster(
    settings: RunSettings,
    trial: "Trial",
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
    uploads: Uploads | None,
) -> bool:
    """Start the parts and run the loop. True: it was interrupted."""
    with doing("loading Ray and torch", console.note):
        from services import launch
        from services.prometheus import RunMetrics
        from services.ray_cluster import cluster

    stop = StopRequest(lambda: console.note(ASKED_TO_STOP))
    with contextlib.ExitStack() as ends:
        with doing("starting Ray", console.note):
            ends.enter_context(cluster(console.warn))
            watch = ends.enter_context(RunMetrics(settings.run_name, settings.iterations))
        console.on_progress, tracker.on_metrics = watch.progress, watch.log
        clients = ends.enter_context(launch.service(settings, console.warn, console.note, trial))
        with doing("reading prompts", console.note):
            loop = controller(settings, clients, folder, tracker, console, stop, uploads)
        ends.callback(stop.restore)
        stop.hold()
        try:
            loop.run()
        except Interrupted:
            return True
    return False


def controller(
    settings: RunSettings,
    clients: "Clients",
    folder: RunFolder,
    tracker: Tracker,
    console: Console,
    stop: StopRequest,
    uploads: Uploads | None = None,
) -> "Controller":
    """The loop over these clients, with the task's prompts or annotated data."""
    from services.controller import Controller
    from services.held_out import held_out_leases, policy_perplexity, prompt_reader

    tokenizer = load_tokenizer(settings)
    held_out: dict[str, list[Lease]] = {
        "validation": held_out_leases(settings, "validation"),
        "test": held_out_leases(settings, "test"),
    }
    return Controller(
        settings,
        clients,
        _source(settings, tokenizer, console),
        held_out,
        folder=folder,
        tracker=tracker,
        console=console,
        stop=stop,
        demonstrate=_demonstrations(settings, tokenizer),
        perplexity=policy_perplexity(settings),
        as_read=prompt_reader(settings),
        uploads=uploads,
    )


def _source(
    settings: RunSettings, tokenizer: object, console: Console
) -> "LeaseSource | OfflineSource | MixedSource":
    """What an iteration begins with: annotated responses, prompts, or both."""
    from services.leasing import LeaseSource
    from services.preflight import prompts_of
    from services.prompt_tokens import PromptTokens

    data = None
    if settings.data is not None:
        from services.annotated_data import mixed_with, open_source, other_reference, other_values, summary
        from services.data_task import disagreement

        data = open_source(settings, tokenizer)
        console.note(summary(data))
        for warning in (
            disagreement(Path(settings.data.folder), settings.task_name),
            other_reference(settings),
            other_values(settings),
        ):
            if warning:
                console.warn(warning)
        if settings.data.share is None:
            return data
    prompts = LeaseSource(
        prompts_of(settings, "train"),
        PromptTokens(tokenizer, settings.prompt_limit("train")),
        settings.sampling(),
        group_size=settings.group_size,
        seed=settings.seed,
        priority_scale=settings.rollout.priority_scale,
    )
    return prompts if data is None else mixed_with(settings, prompts, data)


def _demonstrations(settings: RunSettings, tokenizer: object) -> "Demonstrate | None":
    """What to learn from where nothing is generated: references, unless an expert plays."""
    from services.demonstrations import Demonstrations
    from services.model_files import read_model, shared_window

    from_data_alone = settings.data is not None and settings.data.share is None
    if settings.algorithm.online or settings.plays or from_data_alone:
        return None
    loss_on = getattr(settings.algorithm, "loss_on", "response")
    window, limit = shared_window(read_model(settings.model)), settings.prompt_limit("train")
    return Demonstrations(tokenizer, settings.rollout.max_tokens, loss_on, window, limit.side)


def load_tokenizer(settings: RunSettings) -> object:
    from transformers import AutoTokenizer

    model = settings.model
    if model.tokenizer is not None:  # the revision is the model's
        return AutoTokenizer.from_pretrained(model.tokenizer)
    return AutoTokenizer.from_pretrained(model.path, revision=model.revision)


def _start_tracker(settings: RunSettings, folder: RunFolder) -> Tracker:
    found = checkpoints.latest(folder)
    run_id = checkpoints.read_state(found[1]).get("tracking_run_id") if found else None
    tracker = Tracker.start(settings.tracking, settings.output_dir, settings.run_name, run_id)
    tracker.log_parameters(flatten(settings.resolved()))
    tracker.log_artifact(folder.config_file)
    return tracker


def _try_to_report(folder: RunFolder, tracker: Tracker) -> Exception | None:
    """Write the report; why it could not be written, where that hides no other error."""
    try:
        finish_report(folder, tracker)
    except Exception as error:
        return error
    return None


def finish_report(folder: RunFolder, tracker: Tracker) -> None:
    """Write the report and hand it to the tracker, with the curves where there are any yet."""
    from services.report import write_report

    tracker.log_artifact(write_report(folder))
    if folder.curves.exists():
        tracker.log_artifact(folder.curves)


def _is_done(folder: RunFolder, settings: RunSettings) -> bool:
    finished = max(folder.checkpoints(), default=-1)
    has_models = folder.model.exists() and (settings.keep_best is None or folder.best_model.exists())
    return has_models and finished >= settings.iterations


def _last_words(folder: RunFolder) -> str:
    """What an interruption leaves that could not wait for the iteration's end."""
    newest = max(folder.checkpoints(), default=0)
    rows = folder.rollout_info()
    num_lost = max(0, rows[-1]["iteration"] - newest) if rows else 0
    lost = f", {num_lost} iteration{'s' * (num_lost > 1)} after it lost" if num_lost else ""
    if not newest:
        return f"there is no checkpoint yet{lost}; the same command begins anew"
    whole = _shown(folder.checkpoint(newest))
    return f"checkpoint {newest} is whole{lost}; the same command goes on from {whole}"


def _say_what_is_where(settings: RunSettings, folder: RunFolder, tracker: Tracker, interrupted: bool) -> None:
    path = _shown(folder.path)
    if interrupted:
        again = " ".join(sys.argv[1:]) if Path(sys.argv[0]).name.startswith("whetstone") else "train …"
        say(f"\nStopped and saved in {path}. The same command goes on from here: whetstone {again}")
        return
    say(f"\nreport    {_shown(folder.report)}")
    say(f"model     {_shown(folder.model)}   (try it: whetstone chat {path})")
    if folder.best_model.exists():
        say(f"best      {_shown(folder.best_model)}   (by {settings.keep_best})")
    if settings.mirror:
        say(f"mirror    {settings.mirror}")
    if settings.tracking.enabled:
        say(f"tracking  mlflow ui --backend-store-uri {tracker.uri}")


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
