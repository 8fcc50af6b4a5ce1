"""Models that the learner trains or asks: policy, critic, adapters, and how they load."""
