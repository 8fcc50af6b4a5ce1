"""`whetstone serve-model`: put a finished model behind an OpenAI-compatible address."""

import argparse
import importlib.util
from collections.abc import Sequence

from contracts.errors import InputError
from contracts.network.access import checked, token_of
from rollout_workers.engines.choice import choose_engine
from rollout_workers.tools.tool_calls import HERMES, check_parser
from services.generation.chat_options import add_chat_options, with_chosen_chat
from services.generation.run_model import (
    ARGUMENT,
    BASE,
    add_sampling_options,
    at_least,
    chosen_sampling,
    find_model,
    room_for_prompt,
)
from services.terminal.doing import doing

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
    if arguments.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise InputError("--engine vllm: vLLM is not installed; whetstone doctor says how to get it")
    check_parser(arguments.tool_parser)
    token = checked(arguments.token, "--token") if arguments.token else token_of()
    with doing("loading the web server"):
        from services.chat.web_chat import listen
        from services.generation.model_service import name_of, serve_model
        from services.generation.served import Served
        from services.generation.vllm_service import serve_by_vllm
    with listen(arguments.host, arguments.port, token) as door:
        # Requests come one by one, and vLLM lets them in at once.
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
    parser.add_argument("model", **ARGUMENT)  # type: ignore[arg-type]
    parser.add_argument("--base", **BASE)  # type: ignore[arg-type]
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1, this machine only)")
    parser.add_argument(
        "--port", type=at_least(0), default=PORT, metavar="N", help=f"(default: {PORT}; 0: any free one)"
    )
    parser.add_argument("--token", metavar="TEXT", help="callers need it; better set it in WHETSTONE_TOKEN")
    parser.add_argument(
        "--tool-parser", default=HERMES, metavar="NAME", help=f"(default: {HERMES}; or one of vLLM's)"
    )
    add_chat_options(parser)
    add_sampling_options(parser, seed=None)
    return parser
