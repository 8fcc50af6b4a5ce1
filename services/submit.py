"""`whetstone submit [OVERRIDES]`: `whetstone train` as a job of a Ray cluster, and what one asks of it."""

import argparse
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from contracts.access import is_loopback
from contracts.errors import InputError
from contracts.output import say
from contracts.redaction import redact
from contracts.working_folder import clashes
from services.doing import doing
from services.interrupts import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from services.jobs import Job, Jobs

ACTIONS = ("status", "logs", "stop", "resume")
EVERY = "all"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
EXIT_FAULT = 1


def run(argv: Sequence[str]) -> int:
    """Submit, or do what the first word says; the exit code is the run's own where it is waited for.

    Raises:
        InputError: the run's configuration is wrong, there is no cluster, or it has no such job.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    words: list[str] = arguments.words
    action = words.pop(0) if words and words[0] in ACTIONS else None
    if action is None:
        return _submit(words, arguments)
    if action != "status" and not words:
        raise InputError(f"{action}: expected a job's ID; `whetstone submit status` lists them")
    if action == "stop" and words == [EVERY]:
        return _stop_all(_jobs(arguments))
    if action != "resume" and len(words) > 1:
        raise InputError(f"{action}: got {' '.join(words)}, expected a single job's ID")
    jobs = _jobs(arguments)
    if action == "status":
        return _status(jobs, words)
    if action == "logs":
        return _logs(jobs, words[0], follow=arguments.follow)
    if action == "stop":
        return _stop(jobs, words[0])
    return _resume(jobs, words[0], words[1:], arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone submit",
        usage="whetstone submit [OPTIONS] KEY=VALUE …\n"
        "       whetstone submit status [ID] | logs ID | stop ID|all | resume ID [KEY=VALUE …]",
        description="Train on a Ray cluster: the same overrides as for `whetstone train`. The log is shown "
        "until the run ends; Ctrl-C leaves it running.",
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help=argparse.SUPPRESS)
    parser.add_argument(
        "--address", help=f"the cluster's job server (default: RAY_ADDRESS, else {DEFAULT_ADDRESS})"
    )
    parser.add_argument("--detach", action="store_true", help="print the job's ID and come back at once")
    parser.add_argument("--follow", action="store_true", help="with logs: go on until the run ends")
    parser.add_argument(
        "--working-dir",
        metavar="FOLDER",
        type=Path,
        help="upload this folder and run in the copy, with the `whetstone` installed on the cluster; "
        "without it the job runs in this very folder, which the cluster has to share",
    )
    return parser


def _submit(overrides: list[str], arguments: argparse.Namespace) -> int:
    with doing("checking settings, model and data"):
        folder = _check(overrides, _address(arguments), arguments.working_dir)
    return _start(_jobs(arguments), overrides, folder, arguments)


def _check(overrides: Sequence[str], address: str, working_dir: Path | None) -> Path:
    """Refuse what would fail there, before anything is sent; the run's folder.

    Where the cluster is this machine, all that `whetstone train` checks; elsewhere the configuration alone:
    model, data and memory are the cluster's.
    """
    from services import preflight
    from services.compose import run_settings

    for override in overrides:
        if (told := redact(override)) != override:
            raise InputError(
                f"{told}: whoever sees the cluster sees a job's command. Set secrets as variables of the "
                "cluster's processes, such as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
    settings = run_settings(list(overrides))
    if working_dir is None:
        if is_loopback(urlsplit(address).hostname or ""):
            preflight.check(settings)
        return Path(settings.output_dir).absolute() / settings.run_name
    if not working_dir.is_dir():
        raise InputError(f"--working-dir {working_dir}: there is no such folder")
    if names := clashes(working_dir):
        raise InputError(
            f"--working-dir {working_dir} has {', '.join(names)}: Ray would import these in the place of "
            "installed modules of the same name. Rename them, or upload a folder without them"
        )
    if not Path(settings.output_dir).is_absolute():
        raise InputError(
            f"output_dir={settings.output_dir}: the copy of --working-dir goes with the job. Expected an "
            "absolute path that the cluster keeps: output_dir=/shared/runs"
        )
    return Path(settings.output_dir) / settings.run_name


def _start(jobs: "Jobs", overrides: Sequence[str], folder: Path, arguments: argparse.Namespace) -> int:
    if others := [job.id for job in jobs.all() if not job.is_over]:
        raise InputError(
            f"{jobs.address} is taken by {', '.join(others)}: one run at a time has a cluster, since its "
            "reward servers are known by their labels; wait for it, or stop it: whetstone submit stop ID"
        )
    id = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', folder.name)}-{secrets.token_hex(3)}"
    uploaded: Path | None = arguments.working_dir
    jobs.submit(entrypoint(overrides, uploaded), id, overrides, str(folder), uploaded)
    say(f"job {id}\nrun {folder}")
    if arguments.detach:
        print(f"whetstone submit logs {id} --follow    shows what it does; so do status, stop and resume")
        return 0
    return _follow(jobs, id)


def entrypoint(overrides: Sequence[str], working_dir: Path | None) -> str:
    """The job's command. `exec`: Ray's signal to stop reaches the run, and no shell in between.

    >>> entrypoint(["iterations=5", "reward={name: rouge}"], Path("."))
    "exec whetstone train iterations=5 'reward={name: rouge}'"
    """
    words = shlex.join(["train", *overrides])
    if working_dir is not None:
        return f"exec whetstone {words}"
    here, python = shlex.quote(str(Path.cwd())), shlex.quote(sys.executable)
    return f"cd {here} && exec {python} -P -m services.cli {words}"


def _follow(jobs: "Jobs", id: str) -> int:
    try:
        job = jobs.follow(id, lambda text: print(redact(text), end="", flush=True))
    except KeyboardInterrupt:
        print(f"\n{id} goes on. whetstone submit logs {id} --follow | stop {id}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _exit_code(job)


def _exit_code(job: "Job") -> int:
    """The run's own, as if it had been started here."""
    if job.status == "SUCCEEDED":
        return 0
    if job.status == "STOPPED":
        return EXIT_INTERRUPTED
    if job.exit_code is None:  # it never came to its first line
        print(job.message, file=sys.stderr)
    return job.exit_code or EXIT_FAULT


def _status(jobs: "Jobs", ids: Sequence[str]) -> int:
    found = [jobs.get(id) for id in ids] if ids else jobs.all()
    if not found:
        print(f"no run was submitted to {jobs.address}")
    width = max((len(job.id) for job in found), default=0)
    for job in found:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.started_at))
        say(f"{job.id:<{width}}  {job.status:<9}  {began}  {job.folder}")
    return 0


def _logs(jobs: "Jobs", id: str, *, follow: bool) -> int:
    jobs.get(id)
    if follow:
        return _follow(jobs, id)
    print(redact(jobs.logs(id)), end="")
    return 0


def _stop(jobs: "Jobs", id: str) -> int:
    job = jobs.get(id)
    if not job.is_over:
        print(f"{id}: stopping; it saves first", flush=True)
        job = jobs.stop(id)
    print(f"{id}: {job.status}, {job.folder}")
    if job.status == "STOPPED":
        print(f"whetstone submit resume {id}    goes on from there")
    return 0


def _stop_all(jobs: "Jobs") -> int:
    """Before a cluster goes, or one of its nodes."""
    for job in [job for job in jobs.all() if not job.is_over]:
        _stop(jobs, job.id)
    return 0


def _resume(jobs: "Jobs", id: str, more: Sequence[str], arguments: argparse.Namespace) -> int:
    """The same command again, which goes on in the same folder; later overrides win."""
    job = jobs.get(id)
    if not job.is_over:
        raise InputError(f"{id} is {job.status}. `whetstone submit stop {id}` ends it; it saves first")
    if job.runtime_env.get("working_dir") and arguments.working_dir is None:
        raise InputError(f"{id} ran in an uploaded folder, of which no copy is kept: expected --working-dir")
    overrides = [override for override in (*job.overrides, *more) if override != "resume=never"]
    folder = _check(overrides, jobs.address, arguments.working_dir)
    if str(folder) != job.folder:
        raise InputError(
            f"{id} ran in {job.folder}, and this would run in {folder}: go on from where it began"
        )
    return _start(jobs, overrides, folder, arguments)


def _jobs(arguments: argparse.Namespace) -> "Jobs":
    with doing("loading Ray"):
        from services.jobs import Jobs

    with doing("asking the cluster"):
        return Jobs(_address(arguments))


def _address(arguments: argparse.Namespace) -> str:
    return str(arguments.address or os.environ.get("RAY_ADDRESS") or DEFAULT_ADDRESS)
