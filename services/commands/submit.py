"""`whetstone submit [OVERRIDES]`: run `whetstone train` as a job of a Ray cluster, and control the job."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import InputError
from services.cluster.job_actions import print_logs, print_status, start, stop, stop_all
from services.terminal.doing import doing
from services.training.preflight.checks.job_checks import check_job

if TYPE_CHECKING:
    from services.cluster.jobs import Jobs

ACTIONS = ("status", "logs", "stop", "resume")
EVERY = "all"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"


def run(argv: Sequence[str]) -> int:
    """Submit a run, or do the first word's action. With a wait, return the run's exit code.

    Raises:
        InputError: the run's configuration is wrong, or no cluster or job was found.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    words: list[str] = arguments.words
    action = words.pop(0) if words and words[0] in ACTIONS else None
    if action is None:
        return _submit(words, arguments)
    if action != "status" and not words:
        raise InputError(f"{action}: expected a job's ID; `whetstone submit status` lists them")
    if action == "stop" and words == [EVERY]:
        return stop_all(_jobs(arguments))
    if action != "resume" and len(words) > 1:
        raise InputError(f"{action}: got {' '.join(words)}, expected a single job's ID")
    jobs = _jobs(arguments)
    if action == "status":
        return print_status(jobs, words)
    if action == "logs":
        return print_logs(jobs, words[0], to_the_end=arguments.follow)
    if action == "stop":
        return stop(jobs, words[0])
    return _resume(jobs, words[0], words[1:], arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone submit",
        usage="whetstone submit [OPTIONS] KEY=VALUE …\n"
        "       whetstone submit status [ID] | logs ID | stop ID|all | resume ID [KEY=VALUE …]",
        description="Train on a Ray cluster, with the overrides of `whetstone train`. The command shows the "
        "log until the run ends; Ctrl-C leaves the run going.",
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help=argparse.SUPPRESS)
    parser.add_argument(
        "--address", help=f"the cluster's job server (default: RAY_ADDRESS, else {DEFAULT_ADDRESS})"
    )
    parser.add_argument("--detach", action="store_true", help="print the job's ID and return at once")
    parser.add_argument("--follow", action="store_true", help="with logs: show the log until the run ends")
    parser.add_argument(
        "--working-dir",
        metavar="FOLDER",
        type=Path,
        help="upload this folder and run in the copy, with the `whetstone` installed on the cluster; "
        "without it the job runs in the current folder, which the cluster must share",
    )
    return parser


def _submit(overrides: list[str], arguments: argparse.Namespace) -> int:
    with doing("checking settings, model and data"):
        folder = check_job(overrides, _address(arguments), arguments.working_dir)
    return start(_jobs(arguments), overrides, folder, arguments.working_dir, detach=arguments.detach)


def _resume(jobs: "Jobs", id: str, more: Sequence[str], arguments: argparse.Namespace) -> int:
    """Start the command of job `id` again; the new run continues in the old one's folder.

    The overrides `more` follow the job's overrides and replace them. Return the exit code.
    """
    job = jobs.get(id)
    if not job.is_over:
        raise InputError(f"{id} is {job.status}. `whetstone submit stop {id}` ends it; it saves first")
    if job.runtime_env.get("working_dir") and arguments.working_dir is None:
        raise InputError(f"{id} ran in an uploaded folder, and no copy is kept: give --working-dir FOLDER")
    overrides = [override for override in (*job.overrides, *more) if override != "resume=never"]
    folder = check_job(overrides, jobs.address, arguments.working_dir)
    if str(folder) != job.folder:
        raise InputError(
            f"{id} ran in {job.folder}, but this would run in {folder}: resume it where you submitted it"
        )
    return start(jobs, overrides, folder, arguments.working_dir, detach=arguments.detach)


def _jobs(arguments: argparse.Namespace) -> "Jobs":
    with doing("loading Ray"):
        from services.cluster.jobs import Jobs

    with doing("asking the cluster"):
        return Jobs(_address(arguments))


def _address(arguments: argparse.Namespace) -> str:
    return str(arguments.address or os.environ.get("RAY_ADDRESS") or DEFAULT_ADDRESS)
