"""vLLM's OpenAI-style server on loopback, as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 300.0
ONE_THREAD = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@contextmanager
def served_by_vllm(model: Path, name: str, screen: Path, *options: str) -> Iterator[str]:
    """Serve a model in float32 under a name; yield the address up to /v1. `screen` gets the output."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", *options]
    with screen.open("w") as output:
        served = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | ONE_THREAD, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert served.poll() is None and time.monotonic() < deadline, screen.read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        served.terminate()
        with suppress(subprocess.TimeoutExpired):
            served.wait(60)
        with suppress(ProcessLookupError):  # an engine's process that does not end by itself
            os.killpg(served.pid, signal.SIGKILL)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
