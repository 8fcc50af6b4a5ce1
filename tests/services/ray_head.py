"""A real Ray cluster of this machine, with its job server, as `ray start --head` makes it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.free_ports import free_ports

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
START_S = 120
TRIES = 3
SCREEN = "head.out"


@dataclass(frozen=True)
class RayHead:
    """A head node on loopback; `environment` is what its users need.

    It asks for a token, unless who starts it has none: then the home folder is a new one.

    Example: `head = RayHead.start({"WHETSTONE_TOKEN": "…"})` … `head.stop()`
    """

    job_server: str  # http://127.0.0.1:…
    metrics: str
    environment: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, variables: dict[str, str], *, token: bool = True) -> "RayHead":
        """Returns when jobs can be submitted. Ray gives up starting after half a minute; a busy machine needs
        a second try.
        """
        for _ in range(TRIES):
            head = cls._begun(variables, token)
            if head._is_up():
                return head
            output = head.screen.read_text()
            head.stop()
        raise AssertionError(f"Ray did not start, {TRIES} times:\n{output}")

    def _is_up(self) -> bool:
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            # The job server may answer before Ray gives up on the rest.
            if "Ray runtime started" in self.screen.read_text():
                return True
            time.sleep(0.2)
        return False

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}

    @classmethod
    def _begun(cls, variables: dict[str, str], token: bool) -> "RayHead":
        # Ray's sockets lie in it, and a socket's path has 107 letters at most.
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        gcs, dashboard, agent, client, metrics = free_ports(5)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        if token:
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32 + "a" * 32}
        else:
            environment["HOME"] = str(folder)
        environment |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(START_S),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        options = {
            "--port": gcs,
            "--dashboard-port": dashboard,
            "--dashboard-agent-listen-port": agent,
            "--ray-client-server-port": client,
            "--metrics-export-port": metrics,
            "--dashboard-host": "127.0.0.1",
            "--node-ip-address": "127.0.0.1",
            "--temp-dir": folder,
            "--num-cpus": 2,
            "--object-store-memory": 200_000_000,
        }
        words = [f"{name}={value}" for name, value in options.items()]
        with (folder / SCREEN).open("w") as screen:
            process = subprocess.Popen(
                [*RAY, "start", "--head", "--block", *words],
                env=environment | variables,
                stdout=screen,
                stderr=screen,
                start_new_session=True,
            )
        job_server, endpoint = f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{metrics}/metrics"
        return cls(job_server, endpoint, environment, folder, process)

    @property
    def screen(self) -> Path:
        return self.folder / SCREEN

    def stop(self) -> None:
        self.process.terminate()  # with --block its parts end with it
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
        shutil.rmtree(self.folder, ignore_errors=True)
