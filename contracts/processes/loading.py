"""A lock that every load of a model in this process holds, so that models load one at a time.

transformers replaces some of its functions during a load, such as `PreTrainedModel.tie_weights`. Two loads at
once restore them in the wrong order: from then on no head is tied to its embedding, silently.
"""

import threading

ONE_MODEL_AT_A_TIME = threading.RLock()
