"""Rules for every test: no network but loopback, no reports of usage, signals as in a terminal."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from contracts.processes.loading import ONE_MODEL_AT_A_TIME
from contracts.secrets import secret_values

settings.register_profile("any machine", deadline=None)  # seconds say nothing about right or wrong
settings.load_profile("any machine")

collect_ignore = ["raising"]  # its sitecustomize.py is for other processes

# Read by the libraries when they are first imported, also in the processes that tests start.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # Ray's ports on loopback, as ray_variables.py has them
    RAY_USAGE_STATS_ENABLED="0",
    MLFLOW_DISABLE_TELEMETRY="true",
    TOKENIZERS_PARALLELISM="false",
)


@pytest.fixture(autouse=True)
def _secrets_of_one_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget a test's secrets: they are none in the next one's texts."""
    monkeypatch.setattr(secret_values, "_remembered", set(secret_values._remembered))
    yield


@pytest.fixture(scope="module", autouse=True)
def _modules_of_one_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a file's tests wrote and imported; the next file may use their names."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """A shell has a job in the background ignore Ctrl-C, and so would all that a test starts."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def one_model_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's own loads wait for those of the parts that it started, as these wait for one another."""
    if library := sys.modules.get("transformers.modeling_utils"):
        load = library.PreTrainedModel.from_pretrained.__func__

        def one_at_a_time(cls: type, *arguments: object, **options: object) -> object:
            with ONE_MODEL_AT_A_TIME:
                return load(cls, *arguments, **options)

        monkeypatch.setattr(library.PreTrainedModel, "from_pretrained", classmethod(one_at_a_time))


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep lines about a slow start out of every test's way."""
    monkeypatch.setattr("services.terminal.doing.FIRST_S", 3600.0)


@pytest.fixture(autouse=True)
def trackers_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the deadlines of trackers, made for people who wait, from failing tests on a slow machine."""
    monkeypatch.setattr("services.runs.tracking.tracker.START_S", 600.0)
    monkeypatch.setattr("services.runs.tracking.background.FINISH_S", 600.0)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Ray on this machine, for the tests of one file."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
