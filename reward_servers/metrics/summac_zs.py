"""Mean SummaC zero-shot consistency of summaries with their documents (-1 to 1), by an inference model."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import summac_zs


class SummacZs(summac_zs.SummacZs, MeanScore):
    """The reward `summac_zs`, as a metric."""

    key: ClassVar[str] = "consistency/summaczs"
