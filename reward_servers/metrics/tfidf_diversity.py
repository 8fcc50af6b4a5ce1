"""Mean tf-idf weight of the words of the texts, less for very short ones (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import tfidf_diversity


class TfidfDiversity(tfidf_diversity.TfidfDiversity, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "diversity_metrics/tfidf"
