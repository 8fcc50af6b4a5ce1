"""The calls of a training client, as run by the trainer."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from learner.training_service.losses import check
from learner.training_service.spec import AdamParams
from services.training.service.bodies import LoadBody, SaveBody, SaveForSamplerBody, StepBody
from services.training.service.checkpoints import SAMPLER, TRAINING, Checkpoints, path_of, spec_of
from services.training.service.child import Child
from services.training.service.journal import Answer, Call, Journal, answer, failure
from services.training.service.wire import data_of, loss_options, loss_output, read_request

NOT_FINITE = (
    "the gradient's norm is {norm}, but must be finite; no weight has moved, and the gradient is "
    "dropped. A lower learning rate usually helps"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer to a call, and what to record with it.

    Args:
        moves: whether a new trainer has to repeat the call.
        notes: further writes in the transaction of the answer.
        may_snapshot: whether the model has no gradients now.
        must_snapshot: whether the call should not be repeated, because its files may be deleted.
    """

    answer: Answer
    moves: bool = False
    notes: Sequence[Callable[[], object]] = ()
    may_snapshot: bool = False
    must_snapshot: bool = False


class TrainingCalls:
    """Calls by kind. Repeating a call that changed a model gives the same bits."""

    def __init__(self, trainer: Child, journal: Journal, checkpoints: Checkpoints) -> None:
        self._trainer, self._journal, self._checkpoints = trainer, journal, checkpoints

    def perform(self, call: Call) -> Outcome:
        """Run a call.

        Raises:
            InputError: the call can't run; nothing has changed.
        """
        kinds = {
            "create_model": self._created,
            "load_weights": self._load,
            "forward": self._pass,
            "forward_backward": self._pass,
            "optim_step": self._step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
        }
        return kinds[call.kind](call)

    def create(self, row: Mapping[str, Any]) -> None:
        """Create a model from its row: its spec, with the state of its snapshot."""
        self._trainer.call("create", row["id"], spec_of(row["spec"]))
        if row["snapshot"] is not None:
            self._trainer.call("load", row["id"], Path(row["snapshot"]), with_optimizer=True)

    def _created(self, call: Call) -> Outcome:
        return Outcome(answer({"type": "create_model", "model_id": call.model}))

    def _load(self, call: Call) -> Outcome:
        body = LoadBody.model_validate_json(call.body)
        row = self._checkpoints.need(body.path, TRAINING)
        self._trainer.call("load", call.model, Path(row["folder"]), with_optimizer=body.optimizer)
        reply = {"type": "load_weights", "path": body.path, "model_id": call.model}
        return Outcome(answer(reply), moves=True, must_snapshot=True)

    def _pass(self, call: Call) -> Outcome:
        request, backward = read_request(call.body), call.kind == "forward_backward"
        data = data_of(request)
        config = check(request.loss_fn, loss_options(request), data, self._trainer.call("read_limits"))
        logprobs, total = self._trainer.call(
            "forward_backward", call.model, data, request.loss_fn, config, backward=backward
        )
        return Outcome(Answer(loss_output(logprobs, total), is_proto=True), moves=backward)

    def _step(self, call: Call) -> Outcome:
        params: AdamParams = StepBody.model_validate_json(call.body).adam_params.params()
        report = self._trainer.call("optim_step", call.model, params)
        if not report.moved:  # the gradients were dropped
            return Outcome(failure(NOT_FINITE.format(norm=report.norm), "user"), moves=True)
        metrics = {"gradient_norm": report.norm}
        return Outcome(answer({"metrics": metrics}), moves=True, may_snapshot=True)

    def _save(self, call: Call) -> Outcome:
        body = SaveBody.model_validate_json(call.body)
        name = body.path or f"{call.seq:06d}"
        self._checkpoints.check_name(call.model, TRAINING, name, overwrite=body.overwrite)
        folder = self._write(call.model, TRAINING, name, "save")
        note = self._note(call.model, TRAINING, name, folder, body.user_metadata)
        path = path_of(call.model, TRAINING, name)
        return Outcome(answer({"type": "save_weights", "path": path}), notes=[note])

    def _save_for_sampler(self, call: Call) -> Outcome:
        body = SaveForSamplerBody.model_validate_json(call.body)
        hidden = body.path is None
        name = body.path or f"at-call-{call.seq:06d}"
        self._checkpoints.check_name(call.model, SAMPLER, name, overwrite=hidden)
        folder = self._write(call.model, SAMPLER, name, "export")
        path = path_of(call.model, SAMPLER, name)
        notes = [self._note(call.model, SAMPLER, name, folder, body.user_metadata, hidden=hidden)]
        reply: dict[str, object] = {"type": "save_weights_for_sampler", "path": path}
        if hidden:
            session = call.model.partition(":")[0]
            sampler = f"{session}:sample:{body.sampling_session_seq_id}"
            insert = "INSERT OR REPLACE INTO samplers VALUES (?,?,?)"
            notes.append(lambda: self._journal.write(insert, sampler, session, path))
            notes.append(lambda: self._checkpoints.forget_hidden(call.model))
            reply = {"type": "save_weights_for_sampler", "sampling_session_id": sampler}
        return Outcome(answer(reply), notes=notes)

    def _write(self, model: str, part: str, name: str, method: str) -> Path:
        return self._checkpoints.write(
            model, part, name, lambda folder: self._trainer.call(method, model, folder)
        )

    def _note(
        self, model: str, part: str, name: str, folder: Path, metadata: Any, *, hidden: bool = False
    ) -> Callable[[], object]:
        row = self._journal.row("SELECT spec FROM models WHERE id = ?", model)
        if row is None:
            raise InputError(f"there is no model {model!r}")
        spec = spec_of(row["spec"])
        return lambda: self._checkpoints.record(model, part, name, folder, spec, metadata, hidden)


def metadata_of(text: str | None) -> dict[str, str] | None:
    """Return metadata as the SDK reads them: texts by name."""
    kept = json.loads(text) if text else None
    return None if kept is None else {str(key): str(value) for key, value in kept.items()}
