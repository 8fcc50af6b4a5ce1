"""SPICE F1 of the text against its references (0 to 1), by a Java program that parses both."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.text import spice


class Spice(Grader):
    """SPICE on shared objects, attributes and relations, with a Java process for each batch."""

    key: ClassVar[str] = "lexical/spice"
    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = spice.REQUIRES

    memory_gb: int = Field(default=8, ge=1)  # memory limit of the Java process, in GB
    timeout_s: float = Field(default=600.0, gt=0)  # deadline of one batch; the server's timeout_s holds, too
    tokenizer: spice.Tokenizer = "none"

    def check(self) -> None:
        spice.check_tokenizer(self.tokenizer)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return spice.Spice(self.memory_gb, self.timeout_s, self.tokenizer).score(samples)


class SpiceOfSplit(Spice):
    """The same with one Java process for all samples, which takes longer."""

    timeout_s: float = Field(default=3600.0, gt=0)
