"""Algorithms by name. Each has one file, whose settings class is the algorithm."""

ALGORITHMS: dict[str, str] = {
    "a2c": "learner.algorithms.a2c:A2C",
    "a_lol": "learner.algorithms.a_lol:ALoL",
    "a_lol_kl": "learner.algorithms.a_lol_kl:ALoLKL",
    "a_lol_ref_free": "learner.algorithms.a_lol_ref_free:ALoLReferenceFree",
    "a_lol_seq": "learner.algorithms.a_lol_seq:ALoLSequence",
    "dpo": "learner.algorithms.dpo:DPO",
    "grpo": "learner.algorithms.grpo:GRPO",
    "nll": "learner.algorithms.nll:NLL",
    "nlpo": "learner.algorithms.nlpo:NLPO",
    "ppo": "learner.algorithms.ppo:PPO",
    "pro": "learner.algorithms.pro:PRO",
    "r_gold": "learner.algorithms.r_gold:RGold",
    "r_lol": "learner.algorithms.r_lol:RLoL",
    "reinforce_pp": "learner.algorithms.reinforce_pp:ReinforcePP",
    "rejection": "learner.algorithms.rejection:RejectionSampling",
    "return_conditioned": "learner.algorithms.return_conditioned:ReturnConditioned",
    "rloo": "learner.algorithms.rloo:RLOO",
    "supervised": "learner.algorithms.supervised:Supervised",
    "trpo": "learner.algorithms.trpo:TRPO",
    "wbc": "learner.algorithms.wbc:WBC",
}
