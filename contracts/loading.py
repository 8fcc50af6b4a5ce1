"""One model at a time: a lock for every load of a model in this process.

transformers replaces functions of its own while it loads a model: `PreTrainedModel.tie_weights`, for one. Two
loads at once put them back in the wrong order. From then on no head
is tied to its embedding, and nobody is told.
"""

import threading

ONE_MODEL_AT_A_TIME = threading.RLock()
