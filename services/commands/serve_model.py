"""`whetstone serve-model`: put a finished model behind an OpenAI-compatible address."""

import argparse
from collections.abc import Sequence

from rollout_workers.engines import ENGINES
from rollout_workers.engines.choice import choose_engine
from rollout_workers.engines.traits import check_installed
from rollout_workers.tools.tool_calls import HERMES, check_parser
from services.inference.generation.chat_options import add_chat_options, with_chosen_chat
from services.inference.generation.run_model import (
    add_model,
    add_sampling_options,
    chosen_sampling,
    find_model,
    room_for_prompt,
)
from services.terminal.doing import doing
from services.terminal.options import add_address, token_in

PORT = 8020


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM. Return the exit code.

    Raises:
        InputError: there is no model, an option is out of range, or the address can't or must not be used.
    """
    arguments = _parser().parse_args(argv)
    model = with_chosen_chat(find_model(arguments.model, arguments.base), arguments)
    sampling = chosen_sampling(model, arguments)
    room_for_prompt(model, sampling.max_tokens)
    check_installed(arguments.engine)
    check_parser(arguments.tool_parser)
    token = token_in(arguments)
    with doing("loading the web server"):
        from services.inference.generation.model_service import name_of, serve_model
        from services.inference.generation.served import Served
        from services.inference.generation.vllm_service import serve_by_vllm
        from services.terminal.web_pages import listen
    with listen(arguments.host, arguments.port, token) as door:
        # vLLM accepts single requests at once.
        engine = choose_engine(arguments.engine, is_encoder_decoder=model.files.is_encoder_decoder)
        name = name_of(arguments.model)
        served = Served(model, sampling, name, door.socket, token, arguments.seed, arguments.tool_parser)
        if engine == "vllm":
            serve_by_vllm(served)
        else:
            serve_model(served)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone serve-model",
        description="Serve a model at an OpenAI-compatible address until Ctrl-C.",
        epilog="Callers send the token in WHETSTONE_TOKEN as their key. Without a token only this machine is "
        "served. Sampling options of a call win over those given here.",
    )
    add_model(parser)
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto")
    add_address(parser, PORT)
    parser.add_argument(
        "--tool-parser", default=HERMES, metavar="NAME", help=f"(default: {HERMES}; or one of vLLM's)"
    )
    add_chat_options(parser)
    add_sampling_options(parser, seed=None)
    return parser
