"""`whetstone serve`: offer rewards and metrics to other programs over HTTP."""

import argparse
from collections.abc import Sequence

from contracts.network.access import check_exposure, token_of
from reward_servers.part_checks import check_at_hand, check_parts
from services.inference.grading.http_service import check_port, serve
from services.inference.grading.served import chosen, settings_from


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM. Return the exit code.

    Raises:
        InputError: a name or setting is unknown, or the port is taken; raised before anything starts.
    """
    arguments = _parser().parse_args(argv)
    names = [word for word in arguments.words if word.startswith("{") or "=" not in word]
    overrides = [word for word in arguments.words if word not in names]
    rewards, metrics = chosen(names)
    settings = settings_from(overrides, arguments.host, arguments.port)
    settings.check_labels([part.label for part in (*rewards, *metrics)])
    token = token_of()
    check_exposure(settings.http_host, token)
    for kind, parts in (("reward", rewards), ("metric", metrics)):
        check_parts(kind, parts)
        check_at_hand(kind, parts)
    check_port(settings)
    serve(rewards, metrics, settings, token)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone serve",
        description="Serve rewards and metrics over HTTP until Ctrl-C. Callers send the token in "
        "WHETSTONE_TOKEN (or in the file WHETSTONE_TOKEN_FILE). Without a token only this machine is served.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME | KEY=VALUE",
        help="rewards and metrics (default: all built-in ones), package.module:Class, or FILE.py:NAME; "
        "settings such as rouge.replicas=2 or default.timeout_s=30",
    )
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=int, help="(default: 8000)")
    return parser
