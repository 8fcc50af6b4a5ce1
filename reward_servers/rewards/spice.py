"""SPICE F1 of the text against its references (0 to 1), by a Java program that parses both."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text import spice


class Spice(Settings):
    """SPICE on shared objects, attributes and relations, with a Java process for each batch."""

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = spice.REQUIRES

    memory_gb: int = Field(default=8, ge=1)  # of the Java process
    timeout_s: float = Field(default=600.0, gt=0)  # for one batch; the server's timeout_s holds, too
    tokenizer: spice.Tokenizer = "none"

    def check(self) -> None:
        spice.check_tokenizer(self.tokenizer)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return spice.Spice(self.memory_gb, self.timeout_s, self.tokenizer).score(samples)
