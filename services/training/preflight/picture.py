"""Draw which process lies on which GPU of which node. Like Ray, place the learner first, and pack GPUs."""

from dataclasses import dataclass, field

from services.training.preflight.deployment import Machine
from services.training.preflight.placement import ROUNDING, Placement

FREE = "·"


@dataclass(slots=True)
class _Node:
    """GPUs of a node: the free share of each, and the processes on it."""

    left: list[float]
    names: list[list[str]] = field(default_factory=list)

    def take(self, name: str, wanted: float) -> bool:
        """Give whole GPUs, or a share of the fullest GPU with enough room; return whether there was room."""
        if wanted >= 1:
            chosen = [i for i, left in enumerate(self.left) if left >= 1 - ROUNDING][: int(wanted)]
            if len(chosen) < wanted:
                return False
        else:
            fit = [i for i, left in enumerate(self.left) if left >= wanted - ROUNDING]
            chosen = sorted(fit, key=lambda i: self.left[i])[:1]
        for i in chosen:
            self.left[i] -= min(wanted, 1.0)
            self.names[i].append(name)
        return bool(chosen)


def pictured(placed: Placement, machine: Machine, strategy: str = "none") -> list[str]:
    """Return a line for each node, and a line that explains the letters.

    The picture assumes empty nodes and packs ranks in order. Ray decides when the run starts.

    Example: on one node with two GPUs:

        node 1  [L0][W0]
        L: learner, W: rollout worker
    """
    sizes = machine.nodes or (int(machine.num_gpus),)
    nodes = [_Node([1.0] * size, [[] for _ in range(size)]) for size in sizes]
    kinds = {
        "L": (placed.learner.num_gpus, placed.num_learners),
        "W": (placed.worker.num_gpus, placed.num_workers),
    }
    outside = []
    for letter, (wanted, count) in kinds.items():
        spreads = letter == "W" and "spread" in strategy
        names = [f"{letter}{i}" for i in range(count)] if wanted else []
        outside += [name for name in names if not _placed(name, wanted, nodes, spreads)]
    graders = [wanted for wanted, count in placed.rewards for _ in range(count)]
    outside += [f"R{i}" for i, wanted in enumerate(graders) if not _placed(f"R{i}", wanted, nodes, False)]
    rows = [
        f"node {number}  " + "".join(f"[{'+'.join(names) or FREE}]" for names in node.names)
        for number, node in enumerate(nodes, 1)
    ]
    words = {"L": "learner", "W": "rollout worker", "R": "reward or metric", FREE: "free"}
    shown = "".join(rows)
    rows.append(", ".join(f"{sign}: {word}" for sign, word in words.items() if sign in shown))
    return rows + ([f"no room: {', '.join(outside)}"] if outside else [])


def _placed(name: str, wanted: float, nodes: list[_Node], spreads: bool) -> bool:
    """Put a process on the first node with room, or on the emptiest node if it `spreads`."""
    order = sorted(nodes, key=lambda node: -sum(node.left)) if spreads else nodes
    return any(node.take(name, wanted) for node in order)
