"""Confined work on samples, each in a separate process with limits enforced by the kernel.

    reward ── jobs ──▶ fork server (reward_servers/isolation/fork_server.py) ──▶ a process a sample
           ◀── outcomes, in order ──

A bad sample costs only itself. If a shared process ends badly, each of its samples gets a separate process.
If the fork server ends, it is restarted.
"""

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import RewardError
from reward_servers.isolation.fork_server import UNCONFINED
from reward_servers.isolation.limits import Limits
from reward_servers.user_rewards.sandbox import Child

PAYLOADS = "payloads"  # a file in the server's folder, which it removes at once
# A run's payload; two of them for two processes, the first of which asks the second.
Run = Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]]
START_S = 120.0  # time to import what the work needs
GRACE_S = 10.0  # beyond a batch's own time
# The same answers in each process, and no thread for each core in each sample.
VARIABLES = {"PYTHONHASHSEED": "0"} | {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Output of one run, and the reason of a bad end, else "".

    Example: `Outcome("42\\n")`, `Outcome("", why="time")`
    """

    output: str
    why: str = ""

    @property
    def value(self) -> Any:
        """The value that `perform` returned; None if the run ended early."""
        try:
            return None if self.why else json.loads(self.output)
        except ValueError:
            return None


class _ForkServer(Child):
    _setting = "limits.batch_seconds"

    def __init__(self, module: str, limits: Limits, together: int) -> None:
        self._start("reward_servers.isolation.fork_server", has_home=True, more=VARIABLES)
        bounds = limits.model_dump(include={"seconds", "memory_gib", "file_mib"})
        bounds["together"] = together
        bounds["parallel"] = limits.parallel or len(os.sched_getaffinity(0))
        try:
            reply = self._exchange({"module": module, "bounds": bounds}, START_S)
        except BaseException:
            self.end()
            raise
        if "failed" in reply:
            self.end()
            raise RewardError(f"{module}: {reply['failed']}")

    def outcomes(self, jobs: Sequence[Sequence[Run]], seconds: float) -> list[list[Outcome] | None]:
        spans = self._write(jobs)
        reply = self._exchange({"jobs": spans, "payloads": PAYLOADS, "seconds": seconds}, seconds + GRACE_S)
        return [job and [Outcome(*run) for run in job] for job in reply["outcomes"]]

    def _write(self, jobs: Sequence[Sequence[Run]]) -> list[list[list[tuple[int, int]]]]:
        """Write all payloads to a file, and return their places, so that no fork holds another's payload."""
        spans: list[list[list[tuple[int, int]]]] = []
        start = 0
        with open(os.path.join(self._home.name, PAYLOADS), "wb") as file:
            for job in jobs:
                spans.append([])
                for run in job:
                    spans[-1].append([])
                    for payload in run if isinstance(run, tuple) else (run,):
                        size = file.write(json.dumps(payload).encode())
                        spans[-1][-1].append((start, size))
                        start += size
        return spans


class Confined:
    """Work that runs in a separate process for each sample.

    Example: one job of one run, with `work = Confined("reward_servers.verifiers.code", Limits())`:
    `work.run([[{"code": "print(6 * 7)", "stdin": ""}]]) == [[Outcome("42\\n")]]`

    Args:
        module: has `perform(payload)`, which returns bytes, or a value that fits JSON. An optional
        `prepare()`
            is called once before. A run of two payloads has two processes, `ask(payload, file)` and
            `serve(payload, file)`, where `file` is one end of a line; the first one's result counts.
        together: samples that share a process for a second, if each has one run and no code. A fork costs ten
            times a comparison of two numbers.
    """

    def __init__(self, module: str, limits: Limits, together: int = 1) -> None:
        self._module, self._limits, self._together = module, limits, together
        self._server: _ForkServer | None = None
        self._turn = threading.Lock()

    def run(self, jobs: Sequence[Sequence[Run]]) -> list[list[Outcome]]:
        """Return the outcomes of each job's runs, in order; runs after a timed-out one have none.

        Raises:
            RewardError: no job ended within `batch_seconds`, or the server did not start.
        """
        done: dict[int, list[Outcome]] = {}
        while todo := [place for place in range(len(jobs)) if place not in done]:
            outcomes = self._asked([jobs[place] for place in todo])
            reached = {place: runs for place, runs in zip(todo, outcomes, strict=True) if runs is not None}
            for outcome in (runs[-1] for runs in reached.values() if runs[-1].why == UNCONFINED):
                raise RewardError(f"a process can't be confined here: {outcome.output}")
            if not reached:
                raise RewardError(
                    f"none of {len(todo)} samples was reached within limits.batch_seconds="
                    f"{self._limits.batch_seconds:g}; the machine is too busy, or batch_seconds too small"
                )
            done |= reached  # those that were not reached are the next batch
        return [done[place] for place in range(len(jobs))]

    def _asked(self, jobs: Sequence[Sequence[Run]]) -> list[list[Outcome] | None]:
        with self._turn:
            for is_last in (False, True):  # a server that died or hung says nothing about the samples
                server = self._server or self._started()
                try:
                    return server.outcomes(jobs, self._limits.batch_seconds)
                except RewardError:
                    self._close()
                    if is_last:
                        raise
                except BaseException:  # one from outside: an answer that comes late is no later job's
                    self._close()
                    raise
            raise AssertionError("the last try returns or raises")

    def _started(self) -> _ForkServer:
        self._server = server = _ForkServer(self._module, self._limits, self._together)
        weakref.finalize(self, server.end)
        return server

    def _close(self) -> None:
        if self._server is not None:
            self._server.end()
        self._server = None
