"""Mean SPICE F1 of the texts against their references (0 to 1), by a Java program that parses both."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.text import spice


class Spice(Settings):
    """The reward of the same name, as a metric, with one Java process for all samples."""

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = spice.REQUIRES

    memory_gb: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=3600.0, gt=0)
    tokenizer: spice.Tokenizer = "none"

    def check(self) -> None:
        spice.check_tokenizer(self.tokenizer)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        program = spice.Spice(self.memory_gb, self.timeout_s, self.tokenizer)
        return {"lexical/spice": mean_of(program.score(samples))}
