"""Work whose value is its process: to see which samples share one."""

import os


def perform(payload: str) -> int:
    if payload == "exit":
        os._exit(3)
    while payload == "loop":
        pass
    return os.getpid()
