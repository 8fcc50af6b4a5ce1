"""Models that the learner trains or reads: policy, critic, adapters, and their loading."""
