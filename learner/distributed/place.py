"""Place of a learner's rank: its node and its GPUs."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.processes.gpus import VISIBLE


@dataclass(frozen=True, slots=True)
class Place:
    """Node and GPUs of one process. Example: `Place("node-a", "3")`"""

    node: str
    gpus: str  # GPUs, as in CUDA_VISIBLE_DEVICES; "": none


def this_place() -> Place:
    """Return the place of this process."""
    return Place(socket.gethostname(), os.environ.get(VISIBLE, ""))


def said_of(places: Sequence[Place]) -> str:
    """Describe which ranks are on which node, and on which GPUs.

    >>> said_of([Place("a", "0"), Place("a", "1"), Place("b", "0")])
    '0, 1 on a (GPUs 0, 1); 2 on b (GPUs 0)'
    >>> said_of([Place("a", ""), Place("a", "")])
    '0, 1 on a'
    """
    phrases = []
    for node in dict.fromkeys(place.node for place in places):
        ranks = [rank for rank, place in enumerate(places) if place.node == node]
        gpus = [places[rank].gpus for rank in ranks if places[rank].gpus]
        shown = f" (GPUs {', '.join(gpus)})" if gpus else ""
        phrases.append(f"{', '.join(map(str, ranks))} on {node}{shown}")
    return "; ".join(phrases)
