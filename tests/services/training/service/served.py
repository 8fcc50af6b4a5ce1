"""A training service as a command starts it, on loopback, and programs that drive it by the official SDK."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import tinker
from safetensors.torch import load_file
from tinker import types
from torch import Tensor

from tests.free_ports import free_port

KEY = "tml-a-key-of-a-test"
STARTS_WITHIN_S = 240.0


class Server:
    """A service that can be killed, and started again at the same address."""

    def __init__(self, model: Path, folder: Path, *options: str, port: int | None = None) -> None:
        self.model, self.folder, self.options = model, folder, options
        self.port = port or free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = ["serve-training", str(self.model), "--folder", str(self.folder), "--port", str(self.port)]
        command = [sys.executable, "-m", "whetstone", *words, "--engine", "transformers", *self.options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, text=True)
        ends = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < ends:
            assert self.process.poll() is None, "the service ended by itself"
            try:
                self.state()
                return
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError(f"the service did not answer within {STARTS_WITHIN_S:g} s")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = httpx.get(f"{self.address}/api/v1/healthz").json()
        return state

    def kill(self) -> None:
        """Kill the server's own process, as a machine that runs out of memory does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_trainer(self) -> None:
        child = psutil.Process(self.state()["trainer_pid"])
        child.send_signal(signal.SIGKILL)
        child.wait(20)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def tensors(self, path: str, name: str = "weights") -> dict[str, Tensor]:
        """Read a saved state's tensors by its path in the SDK's form."""
        model, part, checkpoint = path.removeprefix("tinker://").split("/")
        stored = self.folder / "checkpoints" / model.replace(":", "-") / part / checkpoint
        return load_file(stored / f"{name}.safetensors")


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[Server]:
    server = Server(model, folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def client_of(server: Server) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=server.address, api_key=KEY)


def datum(tokens: Sequence[int], weights: Sequence[float] | None = None) -> types.Datum:
    """A text of which each token after the first is to be predicted."""
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": list(tokens[1:]),
            "weights": list(weights or [1.0] * (len(tokens) - 1)),
        },
    )


def texts(number: int, count: int = 3) -> list[types.Datum]:
    """Some texts of different lengths; the same ones for the same number."""
    return [
        datum([3 + (7 * number + 5 * row + 3 * place) % 90 for place in range(5 + row)])
        for row in range(count)
    ]


def train(
    client: tinker.TrainingClient, name: str, between: Callable[[int], None] = lambda step: None
) -> str:
    """Make four steps of two calls each, and save the state.

    Args:
        between: called in each step when its gradients are acknowledged, before the optimiser's step.
    """
    for step in range(4):
        for part in range(2):
            client.forward_backward(texts(2 * step + part), "cross_entropy").result()
        between(step)
        client.optim_step(types.AdamParams(learning_rate=3e-3, weight_decay=0.01)).result()
    return client.save_state(name).result().path


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Tell whether tensors have the same names and bits."""
    return ours.keys() == theirs.keys() and all(tensor.equal(theirs[name]) for name, tensor in ours.items())
