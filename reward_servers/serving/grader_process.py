"""A process beside the driver that holds graders, each behind its own cache and queue of batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import InputError
from reward_servers.serving.deployments import deployment_name
from reward_servers.serving.replicas import MetricReplica, RewardReplica
from reward_servers.settings import Part, ServerSettings


@dataclass(frozen=True, slots=True)
class Hosted:
    """A grader of a process.

    Example: `Hosted("reward", Part(name="length"), ServerSettings())`
    """

    kind: str  # "reward" or "metric"
    part: Part
    settings: ServerSettings

    @property
    def name(self) -> str:
        return deployment_name(self.kind, self.part.label)

    def replica(self) -> RewardReplica | MetricReplica:
        """Return the loaded grader.

        Raises:
            InputError: its class can't be made; the message names it.
        """
        try:
            if self.kind == "metric":
                return MetricReplica(self.part)
            return RewardReplica(self.part, self.settings, is_alone=True)
        except Exception as error:
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            raise InputError(f"{self.name} did not start: {reason}") from error


class GraderProcess:
    """An actor that passes each call to the grader of that name."""

    def __init__(self, graders: Sequence[Hosted]) -> None:
        self._replicas = {grader.name: grader.replica() for grader in graders}

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        return await getattr(self._replicas[name], method)(*arguments)

    async def check_health(self) -> None:
        """Raise if a grader hangs, so that the driver replaces this process."""
        for replica in self._replicas.values():
            if isinstance(replica, RewardReplica):
                replica.check_health()
