"""The table of rules. Each is a small class; the warnings of a run and `whetstone diagnose` share them."""

from services.diagnosis.machinery_rules import CriticExplainsNothing, SamplerMismatch, StaleTokens
from services.diagnosis.policy_rules import (
    ClipSaturated,
    EntropyCollapses,
    KLRunsAway,
    LearningRateHigh,
    LearningRateLow,
)
from services.diagnosis.reward_rules import GroupsWithoutVariance, HeldOutFalls, RewardsAtCeiling, RewardSize
from services.diagnosis.rule import Rule
from services.diagnosis.text_rules import LengthExploited, PromptsCut, RepetitionExploited, ResponsesCut

RULES: tuple[Rule, ...] = (
    RewardSize(),
    KLRunsAway(),
    EntropyCollapses(),
    LengthExploited(),
    RepetitionExploited(),
    HeldOutFalls(),
    GroupsWithoutVariance(),
    ClipSaturated(),
    CriticExplainsNothing(),
    SamplerMismatch(),
    ResponsesCut(),
    PromptsCut(),
    StaleTokens(),
    RewardsAtCeiling(),
    LearningRateHigh(),
    LearningRateLow(),
)
