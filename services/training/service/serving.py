"""Serve training: a web server in this process, trainer and sampler in separate processes.

SDK ─▶ web server ─▶ journal ─▶ trainer desk ─▶ trainer
                 └────────────▶ sampler desk ─▶ sampler
"""

import contextlib
import fcntl
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contracts.errors import InputError
from contracts.network.http_server import server_config
from services.terminal.doing import doing
from services.terminal.interrupts import StopRequest
from services.training.service.app import training_app
from services.training.service.checkpoints import Checkpoints
from services.training.service.child import Child
from services.training.service.journal import Journal
from services.training.service.makers import make_sampler, make_trainer
from services.training.service.presence import Presence
from services.training.service.sampler_desk import SamplerDesk
from services.training.service.service import Base, Service
from services.training.service.trainer_desk import TrainerDesk
from services.training.service.training_calls import TrainingCalls
from services.training.service.waiters import Waiters


@dataclass(frozen=True, slots=True)
class Serving:
    """The model to serve, and its place.

    Example: `Serving("models/tiny", frozenset({"tiny"}), False, Path("training"), "transformers", 128, door,
    None)`
    """

    path: str
    aliases: frozenset[str]
    trains_whole: bool
    folder: Path
    engine: str
    window: int | None
    listener: socket.socket
    token: str | None


def serve_training(serving: Serving) -> None:
    """Answer calls until Ctrl-C or SIGTERM.

    Raises:
        InputError: the folder is in use or belongs to another base, or the model can't be trained.
    """
    import uvicorn

    with _alone_in(serving.folder), contextlib.ExitStack() as ends:
        journal = Journal(serving.folder / "journal.sqlite")
        ends.callback(journal.close)
        journal.claim(serving.path, trains_whole=serving.trains_whole)
        waiters = Waiters()
        checkpoints = Checkpoints(serving.folder / "checkpoints", journal)
        trainer = Child("trainer", partial(make_trainer, serving.path, trains_whole=serving.trains_whole))
        sampler = Child("sampler", partial(make_sampler, serving.path, serving.engine, serving.window))
        ends.callback(sampler.stop)
        ends.callback(trainer.stop)
        with doing("starting trainer and sampler"), ThreadPoolExecutor(1) as beside:
            sampler_starts = beside.submit(sampler.start)
            trainer.start()
            limits = trainer.call("read_limits")
            sampler_starts.result()
        calls = TrainingCalls(trainer, journal, checkpoints)
        presence = Presence()
        training = TrainerDesk(journal, trainer, calls, waiters, serving.folder / "state", presence)
        drawing = SamplerDesk(sampler, waiters)
        base = Base(serving.path, serving.aliases, serving.trains_whole, limits)
        service = Service(base, journal, checkpoints, training, drawing, waiters, presence)

        def state() -> dict[str, int | None]:
            return {
                "trainer_pid": trainer.pid,
                "trainer_starts": trainer.num_starts,
                "sampler_pid": sampler.pid,
                "sampler_starts": sampler.num_starts,
            }

        host, port = serving.listener.getsockname()[:2]
        server = uvicorn.Server(server_config(training_app(service, host, serving.token, state)))
        setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  (StopRequest handles signals)
        stop = StopRequest()
        stop.hold(lambda: setattr(server, "should_exit", True))
        training.start()
        drawing.start()
        _announce(serving, host, port)
        try:
            server.run(sockets=[serving.listener])
        finally:
            stop.restore()
            training.stop()
            drawing.stop()


def _announce(serving: Serving, host: str, port: int) -> None:
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = "the token" if serving.token else "any key that begins with tml-"
    print(
        f"{serving.path} trains at {address} (base_url), with {key} as api_key. Ctrl-C ends it.", flush=True
    )


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other services out of a folder.

    Raises:
        InputError: another service uses the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"--folder {folder}: another service uses it; expected another folder") from None
        yield
