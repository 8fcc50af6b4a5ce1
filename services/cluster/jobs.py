"""Client of Ray's job server, which submits, lists, follows and stops runs.

Importing this module imports Ray. Address and token come from Ray's own environment variables.
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

from contracts.errors import DeadlineExceeded, InputError, RunError, did_you_mean
from contracts.network.access import protect_rays_token
from contracts.secrets.redaction import redact
from services.cluster.open_cluster import START_ONE, warning_if_open

# A stopped job writes its checkpoint first; Ray alone would wait 3 s.
STOP_WAIT_S = 900
CONNECT_S = 5.0
STATUS_S = 60.0  # time until the status changes after the end of the log
AWAY_S = 60.0  # longest time without the cluster's answer
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
    """Filter that shows each part of a repeatedly read text once.

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
    """The job server at one address.

    Raises:
        InputError: the server does not answer, or wants another token.
        RunError: the server refuses a request.
    """

    def __init__(self, address: str) -> None:
        """Connect to the job server.

        Raises:
            InputError: no server answers at the address, or the server wants another token.
        """
        self.address = address
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)  # it sets its own
        protect_rays_token()
        _use_token()
        _knock(address)
        # Ray's client prefers these variables to the address that it is given.
        addresses = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
        try:
            with self._explained():
                self._client = JobSubmissionClient(address)
        finally:
            os.environ.update({name: value for name, value in addresses.items() if value is not None})
        if warning := warning_if_open(self._client.get_address()):
            print(f"warning: {warning}", file=sys.stderr)

    def submit(
        self, entrypoint: str, id: str, overrides: Sequence[str], folder: str, working_dir: Path | None
    ) -> None:
        """Submit a run as a job; its overrides and folder go into the job's metadata."""
        runtime_env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        if working_dir is not None:
            runtime_env["working_dir"] = str(working_dir)
        metadata = {OVERRIDES: json.dumps(list(overrides)), FOLDER: folder}
        with self._explained():
            self._client.submit_job(
                entrypoint=entrypoint, submission_id=id, runtime_env=runtime_env, metadata=metadata
            )

    def all(self) -> list[Job]:
        """Return Whetstone's jobs, newest first."""
        with self._explained():
            listed = [_job(details) for details in self._client.list_jobs() if _is_ours(details)]
        return sorted(listed, key=lambda job: -job.started_at)

    def get(self, id: str) -> Job:
        """Return the job with this id.

        Raises:
            InputError: there is none.
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
        """Show the growing log and return the ended job. Reconnect after a lost connection."""
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
        """Stop a job and wait until it has saved and ended."""
        with self._explained():
            self._client.stop_job(id)
        return self.await_end(id, STOP_WAIT_S + STATUS_S)

    def _get_patiently(self, id: str) -> Job:
        """Return the job like `get`, but retry for up to AWAY_S while the cluster does not answer."""
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return self.get(id)
            except InputError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def await_end(self, id: str, patience_s: float) -> Job:
        """Wait until a job is over.

        Raises:
            DeadlineExceeded: the job still runs after `patience_s`.
        """
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
        except (RuntimeError, ValueError) as error:  # the server refused the request
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
    """Enable token authentication if this user has a token, like Ray's commands."""
    there = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(map(os.environ.get, there)) or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _knock(address: str) -> None:
    """Check within CONNECT_S that something listens at `address`, because Ray would try for minutes."""
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
