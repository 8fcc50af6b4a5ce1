"""`whetstone serve-training`: let programs of Tinker's SDK train a model here."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from rollout_workers.engines import ENGINES
from rollout_workers.engines.choice import choose_engine
from rollout_workers.engines.traits import check_installed
from services.inference.generation.run_model import add_model, find_model
from services.terminal.doing import doing
from services.terminal.options import add_address, token_in

PORT = 8030
KEY = "tml-"  # prefix of the SDK's keys


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM. Return the exit code.

    Raises:
        InputError: there is no model, it can't be trained, or the address can't or must not be used.
    """
    arguments = _parser().parse_args(argv)
    token = token_in(arguments)
    if token is not None and not token.startswith(KEY):
        raise InputError(
            f"the token does not begin with {KEY}, and the SDK sends no other key: "
            f"export WHETSTONE_TOKEN={KEY}$(openssl rand -hex 32)"
        )
    model = find_model(arguments.model, arguments.base)
    if model.files.is_encoder_decoder:
        raise InputError(
            f"{arguments.model}: a training service trains causal models; expected no encoder-decoder"
        )
    check_installed(arguments.engine)
    with doing("loading the web server"):
        from services.terminal.web_pages import listen
        from services.training.service.serving import Serving, serve_training
        from services.training.service.wire import messages

        messages()  # is the SDK there?
    with listen(arguments.host, arguments.port, token) as door:
        folder = Path(model.path)
        path = str(folder.resolve()) if folder.is_dir() else model.path
        aliases = frozenset({arguments.model, model.path, folder.name})
        engine = choose_engine(arguments.engine, is_encoder_decoder=False)
        serve_training(
            Serving(
                path,
                aliases,
                arguments.full,
                arguments.folder,
                engine,
                model.files.window,
                door.socket,
                token,
            )
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone serve-training",
        description="Serve a model to programs of Tinker's SDK, which train it, until Ctrl-C.",
        epilog="Clients need base_url and a key that begins with tml-. Without a token only this machine is "
        "served.",
    )
    add_model(parser)
    parser.add_argument(
        "--full",
        action="store_true",
        help="train all weights, a copy of the model for each client (else: adapters)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("training"),
        metavar="DIR",
        help="journal, checkpoints (default: training)",
    )
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto")
    add_address(parser, PORT)
    return parser
