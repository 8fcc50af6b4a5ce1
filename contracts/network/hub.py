"""Check cheaply whether the Hugging Face hub can be reached.

The hub's client retries for half a minute, but a machine without a network should know at once.
"""

import os
import socket
import sys
from urllib.parse import urlsplit


def is_reachable() -> bool:
    """Return whether the hub's address resolves, or a proxy is set; a proxy resolves addresses itself."""
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
    """Use only the hub's cache, here and in children, if the hub is unreachable; return whether it answers.

    The hub's cache on this machine works either way.
    """
    if is_reachable():
        return True
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # the module was imported and has read the environment
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    return False
