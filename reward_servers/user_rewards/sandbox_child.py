"""The child process of `user_rewards.sandbox`, which sets limits, loads the grader and answers lines."""

import json
import math
import os
import resource
import sys
import threading
import time
from base64 import b64decode
from dataclasses import asdict
from typing import IO, Any

from contracts.errors import InputError
from contracts.objects import hold
from contracts.scores import Sample, as_json
from reward_servers.settings import Part, Sandbox, ServerSettings
from reward_servers.user_rewards.trial import Trial

GIB, MIB = 2**30, 2**20
FILES = 256  # open at a time


def main() -> None:
    # The reward's own output must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    setup = json.loads(sys.stdin.readline())
    if setup["limits"] is not None:
        limit(Sandbox(**setup["limits"]))
    server_options = setup.get("server")
    settings = None if server_options is None else ServerSettings(**server_options)
    hold({name: b64decode(text) for name, text in setup["objects"].items()}, {})
    server = _load(setup["kind"], Part(**setup["part"]), settings, answers)
    for line in sys.stdin:
        request = json.loads(line)
        if "trial" in request:
            verdict = server.try_out(Trial(tuple(_samples(request["trial"])), request["are_real"]))
            _say(asdict(verdict), answers)
        elif "texts" in request:
            _say({"found": server.answers(request["texts"])}, answers)
        else:
            scores = server.score(_samples(request["samples"]))
            traits = {"reads_groups": server.reads_groups, "counts": server.take_counts()}
            _say({"answers": [[as_json(score), reason] for score, reason in scores], **traits}, answers)


def _samples(rows: list[dict[str, Any]]) -> list[Sample]:
    lists = ("references", "turns")  # tuples, before they were JSON
    return [Sample(**{**row, **{key: tuple(row[key]) for key in lists}}) for row in rows]


def limit(limits: Sandbox) -> None:
    """Permanently limit this process and its descendants."""
    if limits.memory_gib is not None:
        _at_most(resource.RLIMIT_AS, math.ceil(limits.memory_gib * GIB))
    _at_most(resource.RLIMIT_FSIZE, math.ceil(limits.file_mib * MIB))
    _at_most(resource.RLIMIT_NOFILE, FILES)
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(kind: int, value: int) -> None:
    _, highest = resource.getrlimit(kind)
    value = value if highest == resource.RLIM_INFINITY else min(value, highest)
    resource.setrlimit(kind, (value, value))


def _load(kind: str, part: Part, settings: ServerSettings | None, answers: IO[str]) -> Any:
    from reward_servers.part_checks import is_deterministic
    from reward_servers.server import MetricServer, RewardServer

    try:
        server = MetricServer(part) if kind == "metric" else RewardServer(part, settings)
    except InputError as error:
        _say({"refused": str(error)}, answers)
        sys.exit(0)
    except Exception as error:  # a reward may raise anything
        _say({"failed": f"{type(error).__name__}: {error}"}, answers)
        sys.exit(0)
    traits = {"is_deterministic": False, "scores_groups": False}
    if isinstance(server, RewardServer):
        traits = {"is_deterministic": is_deterministic(part), "scores_groups": server.scores_groups}
    _say({"ready": True, **traits}, answers)
    return server


def _say(message: dict[str, Any], answers: IO[str]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with(parent: int) -> None:
    """End this process with its parent, so that a hanging reward doesn't outlive its replica."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
