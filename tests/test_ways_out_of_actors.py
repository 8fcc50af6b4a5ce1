"""A secret in each of Whetstone's actors: what they raise, answer, print and log, in Ray's own files, too."""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.environments import Observation, Step
from contracts.errors import InputError, LearnerError, RunError
from contracts.rollout import Prompt
from contracts.scores import MetricValue, Sample
from contracts.settings import build
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.trial import TEXTS
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.settings import RolloutSettings

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

OPTION, VARIABLE = "q7-Zebra.crossing+11", "hf_Yellow0submarine"
PATIENCE_S = 200.0
HERE = "tests.test_ways_out_of_actors"


def leak(where: str, secret: str = VARIABLE) -> str:
    """Say it in every way that a process has; returns it, to be raised."""
    message = f"{where}: refused {secret}"
    print(f"{message} (printed)", flush=True)
    print(f"{message} (on standard error)", file=sys.stderr, flush=True)
    logging.getLogger("some_library").warning("%s (logged)", message)
    logging.getLogger("ray.serve").error("%s (logged by Serve)", message)
    warnings.warn(f"{message} (warned)", stacklevel=1)
    return message


class Leaky:
    """A reward and a metric."""

    def __init__(self, api_key: str, starts: bool = True) -> None:
        self.api_key = api_key
        if not starts:
            raise ConnectionError(leak("constructor", api_key))

    def score(self, samples: Sequence[Sample]) -> list[float]:
        raise ConnectionError(leak("reward", self.api_key) + leak("reward"))

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        raise ConnectionError(leak("metric", self.api_key))


class OnceLeaky(Leaky):
    """A reward that raises for the first text alone, those aside on which it is tried before the start."""

    has_raised: ClassVar[bool] = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        if samples[0].text in TEXTS:
            return [0.0] * len(samples)
        if len(samples) == 1 and not self.has_raised:
            type(self).has_raised = True
            raise ConnectionError(leak("once", self.api_key))
        if not self.has_raised:
            raise ValueError("a batch: its texts are scored one by one")
        return [0.0] * len(samples)


class Haunted(EnvironmentSettings):
    """An environment that raises at the first step."""

    api_key: str = OPTION
    num_parallel: int = 1

    def make(self) -> Any:
        return _Haunted(self)


class _Haunted:
    def __init__(self, settings: Haunted) -> None:
        self._api_key = settings.api_key

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation(prompt.text)

    def step(self, text: str) -> Step:
        raise ConnectionError(leak("environment", self._api_key))

    def close(self) -> None: ...


class Engine:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConnectionError(leak("engine"))


def learner() -> Any:
    raise LearnerError(leak("learner"))


def lost_learner() -> Any:
    raise KeyError(leak("learner"))


@pytest.fixture(scope="module")
def session() -> Iterator[Path]:
    """The folder where Ray's processes write what they say."""
    import ray

    from reward_servers.serving.app import shutdown

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", VARIABLE)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            yield Path(ray._private.worker._global_node.get_session_dir_path())
        finally:
            shutdown()
            ray.shutdown()


def raised_by(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        call()
    message = f"{raised.value!r} {raised.value} {raised.value.__cause__!r}"
    assert OPTION not in message and VARIABLE not in message
    assert "***" in message
    return message


def test_no_actor_lets_a_secret_out(session: Path) -> None:
    _learners()
    _workers()
    _environments()
    _rewards(beside=False)
    _rewards(beside=True)
    _in_files(session)


def _learners() -> None:
    import ray

    from learner.actors.process import LearnerProcess

    for make, kind in ((learner, LearnerError), (lost_learner, RunError)):
        actor = ray.remote(LearnerProcess).remote(make)
        raised_by(lambda actor=actor: ray.get(actor.start.remote(), timeout=PATIENCE_S), kind)


def _workers() -> None:
    import ray

    from rollout_workers.fleet.processes import RolloutWorkerProcess

    actor = ray.remote(RolloutWorkerProcess).remote("none", "none", None, f"{HERE}:Engine", RolloutSettings())
    raised_by(lambda: ray.get(actor.ready.remote(), timeout=PATIENCE_S), RunError)
    raised_by(lambda: ray.get(actor.poll.remote(1.0), timeout=PATIENCE_S), RunError)


def _environments() -> None:
    from rollout_workers.environment_actors import RayEnvironments
    from rollout_workers.environments.pool import Failure

    environments = RayEnvironments(Haunted(step_timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S))
    try:
        seat = environments.take()
        assert seat is not None
        environments.reset(seat, Prompt("x/0", "a"), 0)
        _answer(environments)
        environments.step(seat, "b")
        reply = _answer(environments)
        assert isinstance(reply, Failure)
        assert OPTION not in str(reply.error) and "ConnectionError: environment: refused ***" in str(
            reply.error
        )
    finally:
        environments.close()


def _answer(environments: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (answers := environments.receive(1.0)):
        assert time.monotonic() < deadline
    return answers[0][1]


def _rewards(beside: bool) -> None:
    from reward_servers.serving.app import deploy
    from reward_servers.serving.client import RewardClient, compute_metrics

    settings = build(RewardServersSettings, {"start_timeout_s": PATIENCE_S}, "reward_servers")
    leaky = Part(name=f"{HERE}:Leaky", label="leaky", options={"api_key": OPTION})
    deploy([leaky], [leaky], settings, http=False, beside=beside)
    client = RewardClient([leaky], settings)
    try:
        (score,) = client.submit([Sample("a")]).result(PATIENCE_S)
        assert score.total is None and score.error is not None
        assert OPTION not in score.error and VARIABLE not in score.error and "refused ***" in score.error
    finally:
        client.close()
    raised_by(lambda: compute_metrics([leaky], [Sample("a")], PATIENCE_S), RunError)
    failing = leaky.model_copy(update={"label": "failing", "options": {**leaky.options, "starts": False}})
    raised_by(lambda: deploy([failing], [], settings, http=False, beside=beside), InputError)


def _in_files(session: Path) -> None:
    files = [path for path in session.rglob("*") if path.is_file() and not path.is_socket()]
    texts = {str(path): path.read_bytes() for path in files}
    for secret in (OPTION.encode(), VARIABLE.encode()):
        assert [name for name, text in texts.items() if secret in text] == []
    logged = b"".join(texts.values())
    for where in ("learner", "engine", "environment"):
        for way in ("printed", "on standard error", "warned"):
            assert f"{where}: refused *** ({way})".encode() in logged, (where, way)
    for where in ("reward", "metric", "constructor"):  # of whose prints Serve keeps errors alone
        assert f"{where}: refused *** (logged by Serve)".encode() in logged
