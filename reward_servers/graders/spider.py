"""SPIDEr of the text against its references: a weighted sum of SPICE and CIDEr-D."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.cider import Cider
from reward_servers.text import spice


class Spider(Cider):
    """SPIDEr, with half of SPICE and half of CIDEr-D by default, as in the paper.

    Liu et al., "Improved Image Captioning via Policy Gradient Optimization of SPIDEr" (ICCV 2017). SPICE
    reads plain texts, unless the tokenizer is `coco` or `spacy`, which holds for both.
    """

    requires: ClassVar[tuple[str, ...]] = spice.REQUIRES

    spice_coeff: float = 0.5
    cider_coeff: float = 0.5
    memory_gb: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=600.0, gt=0)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        ciders = super().score(samples)
        shared = self.tokenizer if self.tokenizer in ("coco", "spacy") else "none"
        spices = spice.Spice(self.memory_gb, self.timeout_s, shared).score(samples)
        return [
            self.spice_coeff * spice_value + self.cider_coeff * cider_value
            for spice_value, cider_value in zip(spices, ciders, strict=True)
        ]
