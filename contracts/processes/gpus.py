"""Keep GPUs from processes that reserve none.

Ray chooses the GPUs of a process that reserves some. Any other process would see all GPUs of its node.
PyTorch would put its tensors on the first GPU, in memory that another process needs.
"""

VISIBLE = "CUDA_VISIBLE_DEVICES"


def hidden_unless(num_gpus: float) -> dict[str, str]:
    """Return the environment variables of a process that reserves this many GPUs.

    >>> hidden_unless(0.0), hidden_unless(0.5)
    ({'CUDA_VISIBLE_DEVICES': ''}, {})
    """
    return {} if num_gpus else {VISIBLE: ""}
