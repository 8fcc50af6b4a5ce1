"""The table of rules, each a small class. The warnings of a run and `whetstone diagnose` use them."""

from services.runs.diagnosis.machinery_rules import CriticExplainsNothing, SamplerMismatch, StaleTokens
from services.runs.diagnosis.policy_rules import (
    ClipSaturated,
    EntropyCollapses,
    KLRunsAway,
    LearningRateHigh,
    LearningRateLow,
)
from services.runs.diagnosis.reward_rules import (
    GroupsWithoutVariance,
    HeldOutFalls,
    RewardsAtCeiling,
    RewardSize,
)
from services.runs.diagnosis.rule import Rule
from services.runs.diagnosis.text_rules import LengthExploited, PromptsCut, RepetitionExploited, ResponsesCut

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
