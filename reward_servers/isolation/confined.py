"""Confined work on samples: each gets a process of its own, with limits that the kernel keeps.

    reward ── jobs ──▶ fork server (reward_servers/isolation/fork_server.py) ──▶ a process a sample
           ◀── outcomes, in order ──

Whatever a sample does, it costs that sample alone: those that share a process get one of their own where it
ends badly. If the fork server itself ends, it is started anew.
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
START_S = 120.0  # to import what the work needs
GRACE_S = 10.0  # beyond a batch's own time
# The same answers in each process, and no thread for each core in each sample.
VARIABLES = {"PYTHONHASHSEED": "0"} | {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Output of one run, and why it ended: "" if it ended well.

    Example: `Outcome("42\\n")`, `Outcome("", why="time")`
    """

    said: str
    why: str = ""

    @property
    def value(self) -> Any:
        """The value that `perform` returned; None if the run ended early."""
        try:
            return None if self.why else json.loads(self.said)
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
            told = self._exchange({"module": module, "bounds": bounds}, START_S)
        except BaseException:
            self.end()
            raise
        if "failed" in told:
            self.end()
            raise RewardError(f"{module}: {told['failed']}")

    def outcomes(self, jobs: Sequence[Sequence[Run]], seconds: float) -> list[list[Outcome] | None]:
        spans = self._write(jobs)
        told = self._exchange({"jobs": spans, "payloads": PAYLOADS, "seconds": seconds}, seconds + GRACE_S)
        return [job and [Outcome(*run) for run in job] for job in told["outcomes"]]

    def _write(self, jobs: Sequence[Sequence[Run]]) -> list[list[list[tuple[int, int]]]]:
        """Write all payloads to a file, and return where each stands: no fork has the memory of another's."""
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
    """Work that is done in a process of its own for each sample.

    Example: one job of one run, with `work = Confined("reward_servers.verifiers.code", Limits())`:
    `work.run([[{"code": "print(6 * 7)", "stdin": ""}]]) == [[Outcome("42\\n")]]`

    Args:
        module: has `perform(payload)`, which returns bytes, or a value that fits JSON. `prepare()`, if there
            is one, is called once before. A run of two payloads has two processes, `ask(payload, file)` and
            `serve(payload, file)`, where `file` is one end of a line; what the first returns counts.
        together: samples that share a process for a second, where each has one run and no code of its own. A
            fork costs ten times what comparing two numbers does.
    """

    def __init__(self, module: str, limits: Limits, together: int = 1) -> None:
        self._module, self._limits, self._together = module, limits, together
        self._server: _ForkServer | None = None
        self._turn = threading.Lock()

    def run(self, jobs: Sequence[Sequence[Run]]) -> list[list[Outcome]]:
        """Return the outcomes of each job's runs, in order; runs after one that took too long have none.

        Raises:
            RewardError: no job could be done within `batch_seconds`, or the server did not start.
        """
        done: dict[int, list[Outcome]] = {}
        while todo := [place for place in range(len(jobs)) if place not in done]:
            found = self._asked([jobs[place] for place in todo])
            reached = {place: told for place, told in zip(todo, found, strict=True) if told is not None}
            for outcome in (told[-1] for told in reached.values() if told[-1].why == UNCONFINED):
                raise RewardError(f"a process can't be confined here: {outcome.said}")
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
