"""Frozen model with its own engine: programs call it as the model `partner`; it never trains."""

import copy

from contracts.errors import WorkerError
from rollout_workers.environments.frozen_partner import FrozenPartner
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from rollout_workers.tools.tool_calls import parser_of


class FrozenModel:
    """Engine of a frozen partner in a thread, and the door to it, until `stop`.

    Args:
        by_template: whether the policy reads by a chat template; then a partner with a template does, too.
        tool_parser: name of the parser for calls that offer tools.
        most: largest number of texts that it writes at once.

    Raises:
        InputError: the model does not load, or lacks a required template.
    """

    def __init__(self, partner: FrozenPartner, by_template: bool, tool_parser: str, most: int) -> None:
        calls = EngineCalls()
        self._thread = EngineThread(lambda: partner.engine(most), calls)
        engine = self._thread.engine()
        tokenizer = copy.deepcopy(engine.tokenizer)  # because two threads may not share one
        form = partner.chat_form(by_template, bool(getattr(tokenizer, "chat_template", None)))
        reader = Reader(tokenizer, form, parser_of(tool_parser, tokenizer))
        sampling = partner.sampling()  # all programs share the engine, so none may block it with long texts
        self.door = ModelDoor(engine, reader, calls, sampling, longest=sampling.max_tokens)

    def check(self) -> None:
        """Check that the engine still runs.

        Raises:
            WorkerError: the engine has failed, so calls would wait for ever.
        """
        if self._thread.failure is not None:
            raise WorkerError(f"the frozen partner's engine failed: {self._thread.failure}")

    def stop(self) -> None:
        self._thread.stop()
