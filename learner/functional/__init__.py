"""Mathematics as pure functions of tensors, without state or knowledge of a model.

Shape suffixes: _N generated tokens of a micro-batch, flat, without padding; _B rollouts; _T generated tokens
of a rollout, left-aligned; _K its turns; _H hidden width; _V vocabulary.
"""
