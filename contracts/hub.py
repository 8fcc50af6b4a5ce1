"""Whether the Hugging Face hub can be reached, asked once and cheaply.

Its client retries for half a minute before it gives up; a machine without a network should hear at once.
"""

import os
import socket
import sys
from urllib.parse import urlsplit


def is_reachable() -> bool:
    """Whether the hub's address resolves, or a proxy stands between (which resolves it itself)."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return False
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.getaddrinfo(address.hostname, address.port or 443)
    except OSError:
        return False
    return True


def use_cache_if_unreachable() -> bool:
    """Keep this process and its children from trying a hub that is not there; True when it is there.

    What the hub's cache holds on this machine is found either way.
    """
    if is_reachable():
        return True
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # imported already: it has read the environment before
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    return False
