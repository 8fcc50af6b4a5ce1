"""The algorithms, by name. One file each: its settings class is the algorithm."""

ALGORITHMS: dict[str, str] = {
    "a2c": "learner.algorithms.a2c:A2C",
    "grpo": "learner.algorithms.grpo:GRPO",
    "nlpo": "learner.algorithms.nlpo:NLPO",
    "ppo": "learner.algorithms.ppo:PPO",
    "reinforce_pp": "learner.algorithms.reinforce_pp:ReinforcePP",
    "rejection": "learner.algorithms.rejection:RejectionSampling",
    "return_conditioned": "learner.algorithms.return_conditioned:ReturnConditioned",
    "rloo": "learner.algorithms.rloo:RLOO",
    "supervised": "learner.algorithms.supervised:Supervised",
    "trpo": "learner.algorithms.trpo:TRPO",
}
