"""Algorithms by name. Each has one file, whose settings class is the algorithm."""

from collections.abc import Mapping

ALGORITHMS: dict[str, str] = {
    "a2c": "learner.algorithms.a2c:A2C",
    "a_lol": "learner.algorithms.a_lol:ALoL",
    "a_lol_kl": "learner.algorithms.a_lol_kl:ALoLKL",
    "a_lol_ref_free": "learner.algorithms.a_lol_ref_free:ALoLReferenceFree",
    "a_lol_seq": "learner.algorithms.a_lol_seq:ALoLSequence",
    "cispo": "learner.algorithms.cispo:CISPO",
    "dapo": "learner.algorithms.dapo:DAPO",
    "distillation": "learner.algorithms.distillation:Distillation",
    "dpo": "learner.algorithms.dpo:DPO",
    "dr_grpo": "learner.algorithms.dr_grpo:DrGRPO",
    "grpo": "learner.algorithms.grpo:GRPO",
    "gspo": "learner.algorithms.gspo:GSPO",
    "ipo": "learner.algorithms.ipo:IPO",
    "kto": "learner.algorithms.kto:KTO",
    "nll": "learner.algorithms.nll:NLL",
    "nlpo": "learner.algorithms.nlpo:NLPO",
    "orpo": "learner.algorithms.orpo:ORPO",
    "ppo": "learner.algorithms.ppo:PPO",
    "pro": "learner.algorithms.pro:PRO",
    "r_gold": "learner.algorithms.r_gold:RGold",
    "r_lol": "learner.algorithms.r_lol:RLoL",
    "reinforce_pp": "learner.algorithms.reinforce_pp:ReinforcePP",
    "rejection": "learner.algorithms.rejection:RejectionSampling",
    "return_conditioned": "learner.algorithms.return_conditioned:ReturnConditioned",
    "rloo": "learner.algorithms.rloo:RLOO",
    "simpo": "learner.algorithms.simpo:SimPO",
    "supervised": "learner.algorithms.supervised:Supervised",
    "trpo": "learner.algorithms.trpo:TRPO",
    "wbc": "learner.algorithms.wbc:WBC",
}

# Names that other trainers and papers have for them.
SYNONYMS: Mapping[str, str] = {
    "best_of_n": "rejection",
    "drgrpo": "dr_grpo",
    "gkd": "distillation",
    "on_policy_distillation": "distillation",
    "opd": "distillation",
    "ppo_clip": "ppo",
    "raft": "rejection",
    "reinforce++": "reinforce_pp",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_leave_one_out": "rloo",
    "sft": "supervised",
}
