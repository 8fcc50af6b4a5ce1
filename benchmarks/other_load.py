"""The share of the machine that other programs used during the benchmark."""

import time

import psutil


class OtherLoad:
    """Meter of other programs' processor time: `start`, then `share`.

    It is all cores' work minus the work of the benchmark's processes.
    """

    def __init__(self) -> None:
        self._began, self._before = 0.0, 0.0

    def start(self) -> None:
        self._began, self._before = time.perf_counter(), _busy() - _own()

    def share(self) -> float:
        """Return the others' seconds as a share of all cores' seconds since the start."""
        passed = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return max(0.0, _busy() - _own() - self._before) / passed


def _busy() -> float:
    """Return the seconds that all cores have worked since the machine started."""
    times = psutil.cpu_times()._asdict()
    return sum(times.values()) - sum(
        times.get(kind, 0.0) for kind in ("idle", "iowait", "guest", "guest_nice")
    )


def _own() -> float:
    """Return the seconds of this process and all its descendants, including ended ones."""
    me = psutil.Process()
    seconds = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended, and its parent counts it
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
