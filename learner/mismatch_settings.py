"""Settings against small differences between the engine's and the learner's probabilities."""

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.settings import Settings


class MismatchSettings(Settings):
    """Settings of weights and masks by π_old/μ: the learner's probability of a token over the engine's.

    Weights follow truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"). Bounds of tokens follow IcePop (Ling Team 2025, arXiv 2510.18855,
    with 0.5 and 5). Masks of whole responses follow masked importance sampling (Liu et al. 2025, "When speed
    kills stability"). Here they use the mean over tokens, so that length alone masks no response.

    Example: `learner.mismatch.mask_below=0.5 learner.mismatch.mask_above=5` leaves out tokens that one side
    finds much more probable than the other.
    """

    # Truncated weights min(importance_cap, π_old/μ): of each token, of whole responses, or none. auto: of
    # each token if the engine or the learner computes in bfloat16, else none
    weights: Literal["auto", "token", "response", "none"] = "auto"
    mask_below: float | None = Field(default=None, gt=0, lt=1)  # mask tokens with a smaller π_old/μ
    mask_above: float | None = Field(default=None, gt=1)  # mask tokens with a larger π_old/μ
    # Mask responses whose π_old/μ, as the geometric mean of their tokens, is further from 1 than this factor
    mask_responses_beyond: float | None = Field(default=None, gt=1)

    @property
    def masks(self) -> bool:
        """Return whether some tokens or responses may be masked."""
        return any((self.mask_below, self.mask_above, self.mask_responses_beyond))

    @model_validator(mode="after")
    def _masks_are_of_a_corrected_loss(self) -> Self:
        if self.masks and self.weights == "none":
            raise ValueError(
                "got weights=none with a mask; expected weights=auto, token or response with mask_below, "
                "mask_above or mask_responses_beyond, or none of these"
            )
        return self
