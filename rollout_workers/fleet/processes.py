"""Worker and environment as Ray actors whose output is redacted."""

from typing import Any

from contracts.processes import timeline
from contracts.secrets.output import guard_process
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.host import EnvironmentHost
from rollout_workers.worker import RolloutWorker


class RolloutWorkerProcess(RolloutWorker):
    """`RolloutWorker` as a Ray actor."""

    def __init__(self, *arguments: Any) -> None:
        guard_process(*arguments)
        timeline.switch_on_where_asked()
        super().__init__(*arguments)


class EnvironmentHostProcess(EnvironmentHost):
    """`EnvironmentHost` as a Ray actor."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        guard_process(settings)
        super().__init__(settings)
