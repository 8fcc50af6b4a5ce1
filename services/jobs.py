"""Runs as jobs of a Ray cluster: submitted, asked after, followed, stopped. What speaks to Ray's job server.

Importing this module imports Ray. Ray's own words (address, token) are read from its own variables.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from requests import RequestException

from contracts.access import protect_rays_token
from contracts.errors import DeadlineExceeded, InputError, RunError, did_you_mean
from contracts.redaction import redact
from services.open_cluster import START_ONE, warning_if_open

# A job that is told to stop writes its checkpoint first; Ray's own patience is 3 s.
STOP_WAIT_S = 900
CONNECT_S = 5.0
STATUS_S = 60.0  # for a status to follow the end of the log
AWAY_S = 60.0  # a cluster, or the way to it, may be away so long
POLL_S = 0.5
OVERRIDES, FOLDER = "whetstone_overrides", "whetstone_folder"


@dataclass(frozen=True, slots=True)
class Job:
    """A run on a cluster.

    Example: `Job("numbers-3fa9c1", "RUNNING", None, ("iterations=50",), "/shared/runs/numbers", {}, 1.8e9)`
    """

    id: str
    status: str  # PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED
    exit_code: int | None
    overrides: tuple[str, ...]
    folder: str
    runtime_env: Mapping[str, Any]
    started_at: float
    message: str = ""

    @property
    def is_over(self) -> bool:
        return JobStatus(self.status).is_terminal()


class Unseen:
    """Shows of a text, told in pieces and each time from its beginning, what was not shown before.

    >>> unseen = Unseen(print)
    >>> unseen.read("ab")
    ab
    >>> unseen.begin()
    >>> unseen.read("abc")
    c
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._num_shown, self._num_read = show, 0, 0

    def begin(self) -> None:
        self._num_read = 0

    def read(self, text: str) -> None:
        if unseen := text[max(0, self._num_shown - self._num_read) :]:
            self._show(unseen)
        self._num_read += len(text)
        self._num_shown = max(self._num_shown, self._num_read)


class Jobs:
    """The job server at one address."""

    def __init__(self, address: str) -> None:
        """Raises:
        InputError: nobody answers there, or its token is not ours.
        """
        self.address = address
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)  # it sets its own
        protect_rays_token()
        _use_token()
        _knock(address)
        # Ray's client takes these before the address that it is given.
        given = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
        try:
            with self._explained():
                self._client = JobSubmissionClient(address)
        finally:
            os.environ.update({name: value for name, value in given.items() if value is not None})
        if told := warning_if_open(self._client.get_address()):
            print(f"warning: {told}", file=sys.stderr)

    def submit(
        self, entrypoint: str, id: str, overrides: Sequence[str], folder: str, working_dir: Path | None
    ) -> None:
        runtime_env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        if working_dir is not None:
            runtime_env["working_dir"] = str(working_dir)
        metadata = {OVERRIDES: json.dumps(list(overrides)), FOLDER: folder}
        with self._explained():
            self._client.submit_job(
                entrypoint=entrypoint, submission_id=id, runtime_env=runtime_env, metadata=metadata
            )

    def all(self) -> list[Job]:
        """Whetstone's, newest first."""
        with self._explained():
            found = [_job(details) for details in self._client.list_jobs() if _is_ours(details)]
        return sorted(found, key=lambda job: -job.started_at)

    def get(self, id: str) -> Job:
        """Raises:
        InputError: there is no run with this id.
        """
        ids = [job.id for job in self.all()]
        if id not in ids:
            raise InputError(f"{self.address} has no run {id!r}{did_you_mean(id, ids)}")
        with self._explained():
            return _job(self._client.get_job_info(id))

    def logs(self, id: str) -> str:
        with self._explained():
            return str(self._client.get_job_logs(id))

    def follow(self, id: str, show: Callable[[str], None]) -> Job:
        """Show the log as it grows; the job, once it is over. A connection that is lost is made anew."""
        unseen = Unseen(show)
        while True:
            try:
                asyncio.run(self._tail(id, unseen))
                return self.await_end(id, STATUS_S)
            except (OSError, RuntimeError, ClientError, DeadlineExceeded):
                job = self._get_patiently(id)
                if job.is_over:
                    unseen.begin()
                    unseen.read(self.logs(id))
                    return job
                time.sleep(POLL_S)

    def stop(self, id: str) -> Job:
        """Tell it to end, and wait until it has: it saves first."""
        with self._explained():
            self._client.stop_job(id)
        return self.await_end(id, STOP_WAIT_S + STATUS_S)

    def _get_patiently(self, id: str) -> Job:
        """As `get`; a cluster that does not answer for a moment is asked again."""
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return self.get(id)
            except InputError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def await_end(self, id: str, patience_s: float) -> Job:
        deadline = time.monotonic() + patience_s
        while not (job := self._get_patiently(id)).is_over:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"waited {patience_s:.0f} s for {id} to end: it is {job.status}")
            time.sleep(POLL_S)
        return job

    async def _tail(self, id: str, unseen: "Unseen") -> None:
        unseen.begin()
        async for text in self._client.tail_job_logs(id):
            unseen.read(text)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError:
            raise InputError(
                f"{self.address} wants a token, and ours is missing or wrong: set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as the cluster has them"
            ) from None
        except (ConnectionError, RequestException) as error:
            raise _nobody(self.address, str(error)) from None
        except (RuntimeError, ValueError) as error:  # what the server refuses
            raise RunError(f"{self.address}: {redact(' '.join(str(error).split()))[:500]}") from error


def _is_ours(details: JobDetails) -> bool:
    return bool(details.submission_id) and OVERRIDES in (details.metadata or {})


def _job(details: JobDetails) -> Job:
    metadata = details.metadata or {}
    return Job(
        id=str(details.submission_id),
        status=str(details.status.value),
        exit_code=details.driver_exit_code,
        overrides=tuple(json.loads(metadata.get(OVERRIDES, "[]"))),
        folder=metadata.get(FOLDER, ""),
        runtime_env=details.runtime_env or {},
        started_at=(details.start_time or 0) / 1000,
        message=details.message or "",
    )


def _use_token() -> None:
    """Where a cluster started here left a token, show it, as Ray's own commands do."""
    there = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(map(os.environ.get, there)) or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _knock(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if not parts.hostname or not port:
        raise InputError(f"--address {address}: expected the job server's address, http://HOST:8265")
    try:
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()
    except OSError as error:
        raise _nobody(address, error.strerror or str(error)) from None


def _nobody(address: str, why: str) -> InputError:
    return InputError(
        f"no Ray cluster answers at {address} ({why}). {START_ONE}; "
        "--address=http://HOST:8265 or RAY_ADDRESS name another"
    )
