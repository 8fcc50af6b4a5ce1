"""Runs with the same parts, each from the parts' first weights: only the first one waits for the start."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.outcome import silent_console
from contracts.settings import with_options
from services.config.compose import run_settings
from services.runs.folder import RunFolder
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest

Train = Callable[[Sequence[str], str], RunFolder]


@contextmanager
def started(options: Sequence[str], root: Path) -> Iterator[Train]:
    """Start the parts of a run with `options`; yield a function that trains with other options under a name.

    The other options may change the training, not the parts. Runs go to `root/runs`.
    """
    from services.cluster.ray_cluster import cluster
    from services.training.preflight import preflight
    from services.training.train import launch
    from services.training.train.loop import controller

    first = run_settings(list(options))
    checked = preflight.check(first)
    first = with_options(first, checked.chosen)
    begin = root / "begin"
    begin.mkdir(parents=True, exist_ok=True)
    with cluster(print), launch.service(first, print, print, checked.trial) as clients:
        clients.learner.save(str(begin))

        def train(options: Sequence[str], name: str) -> RunFolder:
            place = [f"output_dir={root / 'runs'}", f"run_name={name}", "resume=never"]
            settings = with_options(run_settings([*options, *place]), checked.chosen)
            clients.workers.cancel_all()
            clients.learner.load(str(begin))
            folder = RunFolder.open(settings.output_dir, name, settings.resolved(), settings.resume)
            tracker = Tracker.start(settings.tracking, settings.output_dir, name)
            controller(settings, clients, folder, tracker, silent_console(), StopRequest()).run()
            return folder

        yield train
