"""The algorithms, by name. One file each: its settings class is the algorithm."""

ALGORITHMS: dict[str, str] = {
    "ppo": "learner.algorithms.ppo:PPO",
    "supervised": "learner.algorithms.supervised:Supervised",
}
