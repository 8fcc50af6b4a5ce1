"""Start, follow, list and stop a Ray cluster's jobs, and report on the screen."""

import re
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import InputError
from contracts.secrets.output import say
from contracts.secrets.redaction import redact
from services.terminal.interrupts import EXIT_INTERRUPTED
from services.terminal.visible import visible_log

if TYPE_CHECKING:
    from services.cluster.jobs import Job, Jobs

EXIT_FAULT = 1


def start(
    jobs: "Jobs", overrides: Sequence[str], folder: Path, uploaded: Path | None, *, detach: bool
) -> int:
    """Submit a job and print its ID; follow it to its end unless `detach`. Return the exit code.

    Raises:
        InputError: another run has the cluster.
    """
    if others := [job.id for job in jobs.all() if not job.is_over]:
        raise InputError(
            f"{', '.join(others)} runs on {jobs.address}. A cluster takes one run at a time, because runs "
            "would share the names of their reward servers. Wait for the run, or stop it: whetstone submit "
            "stop ID"
        )
    id = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', folder.name)}-{secrets.token_hex(3)}"
    jobs.submit(entrypoint(overrides, uploaded), id, overrides, str(folder), uploaded)
    say(f"job {id}\nrun {folder}")
    if detach:
        print(f"whetstone submit logs {id} --follow    shows the log; see also status, stop and resume")
        return 0
    return follow(jobs, id)


def entrypoint(overrides: Sequence[str], working_dir: Path | None) -> str:
    """Return the job's command. With `exec`, Ray's signal to stop reaches the run, not a shell.

    >>> entrypoint(["iterations=5", "reward={name: rouge}"], Path("."))
    "exec whetstone train iterations=5 'reward={name: rouge}'"
    """
    words = shlex.join(["train", *overrides])
    if working_dir is not None:
        return f"exec whetstone {words}"
    here, python = shlex.quote(str(Path.cwd())), shlex.quote(sys.executable)
    return f"cd {here} && exec {python} -P -m services.cli {words}"


def follow(jobs: "Jobs", id: str) -> int:
    """Print the log until the job ends; return the run's exit code. Ctrl-C leaves the job running."""
    try:
        job = jobs.follow(id, lambda text: print(visible_log(redact(text)), end="", flush=True))
    except KeyboardInterrupt:
        print(f"\n{id} keeps running. whetstone submit logs {id} --follow | stop {id}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _exit_code(job)


def _exit_code(job: "Job") -> int:
    """Return the run's exit code, as after a local start."""
    if job.status == "SUCCEEDED":
        return 0
    if job.status == "STOPPED":
        return EXIT_INTERRUPTED
    if job.exit_code is None:  # the run did not start
        print(job.message, file=sys.stderr)
    return job.exit_code or EXIT_FAULT


def print_status(jobs: "Jobs", ids: Sequence[str]) -> int:
    """Print a line for each job, or for the jobs with these IDs."""
    shown = [jobs.get(id) for id in ids] if ids else jobs.all()
    if not shown:
        print(f"no run was submitted to {jobs.address}")
    width = max((len(job.id) for job in shown), default=0)
    for job in shown:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.started_at))
        say(f"{job.id:<{width}}  {job.status:<9}  {began}  {job.folder}")
    return 0


def print_logs(jobs: "Jobs", id: str, *, to_the_end: bool) -> int:
    """Print the log so far, or follow it until the job ends."""
    jobs.get(id)
    if to_the_end:
        return follow(jobs, id)
    print(visible_log(redact(jobs.logs(id))), end="")
    return 0


def stop(jobs: "Jobs", id: str) -> int:
    """Stop a job after it has saved, and print its state."""
    job = jobs.get(id)
    if not job.is_over:
        print(f"{id}: stopping; it saves first", flush=True)
        job = jobs.stop(id)
    print(f"{id}: {job.status}, {job.folder}")
    if job.status == "STOPPED":
        print(f"whetstone submit resume {id}    continues the run")
    return 0


def stop_all(jobs: "Jobs") -> int:
    """Stop all jobs, before a cluster or one of its nodes shuts down."""
    going = [job for job in jobs.all() if not job.is_over]
    if not going:
        print(f"no run of `whetstone submit` goes on at {jobs.address}: there is nothing to stop")
    for job in going:
        stop(jobs, job.id)
    return 0
