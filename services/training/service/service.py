"""Accept the calls of clients: check and record each call, and return an id for its answer.

POST ─▶ checked ─▶ journal ─▶ {"request_id"} ─▶ trainer or sampler ─▶ retrieve_future
"""

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from contracts.errors import InputError
from contracts.rollout import Sampling
from learner.training_service.losses import Limits, check
from learner.training_service.spec import ModelSpec
from services.training.service import bodies
from services.training.service.checkpoints import SAMPLER, TRAINING, Checkpoints, spec_of
from services.training.service.jobs import Job
from services.training.service.journal import Answer, Call, Journal, failure
from services.training.service.presence import Presence
from services.training.service.sampler_desk import SamplerDesk
from services.training.service.trainer_desk import TrainerDesk
from services.training.service.waiters import Waiters
from services.training.service.wire import data_of, loss_options, read_request

POLL_S = 20.0  # a client waits for an answer, before it asks again
MOST_SAMPLES = 1024  # most samples of one prompt
BROKEN = "the service can't train any more: {reason}. Start it again with the same folder: nothing is lost"
OTHER_CALL = "was sent before with other content; a new call needs a new seq_id"
BodyType = TypeVar("BodyType", bound=BaseModel)


class NotThere(InputError):
    """A model, session or checkpoint that does not exist."""


class Gone(InputError):
    """The call is unknown to this server, so the SDK repeats it; or the session is finished."""


@dataclass(frozen=True, slots=True)
class Base:
    """The served base: its name, other names that clients may use, and what is trained."""

    name: str
    aliases: frozenset[str]
    trains_whole: bool
    limits: Limits


class Service:
    """The service's calls, as the web server makes them."""

    def __init__(
        self,
        base: Base,
        journal: Journal,
        checkpoints: Checkpoints,
        trainer: TrainerDesk,
        sampler: SamplerDesk,
        waiters: Waiters,
        presence: Presence,
    ) -> None:
        self.base, self.journal, self.checkpoints = base, journal, checkpoints
        self._trainer, self._sampler, self._waiters = trainer, sampler, waiters
        self._presence = presence

    def create_session(self, body: bodies.SessionBody) -> str:
        session = secrets.token_hex(8)
        info = body.model_dump(include={"user_metadata", "display_name", "tags"})
        self.journal.write("INSERT INTO sessions (id, info) VALUES (?,?)", session, json.dumps(info))
        return session

    def create_model(self, body: bodies.CreateBody) -> dict[str, Any]:
        self._check_base(body.base_model)
        lora = body.lora_config
        if lora is None and not self.base.trains_whole:
            raise InputError(
                "create_model without lora_config asks for all weights, and this server trains adapters; "
                "expected a lora_config, or a server with --full"
            )
        seed = lora.seed if lora is not None and lora.seed is not None else secrets.randbits(31)
        spec = ModelSpec(rank=None)
        if lora is not None and not self.base.trains_whole:
            spec = ModelSpec(lora.rank, seed, lora.train_attn, lora.train_mlp)
        return self._new_model(
            body.session_id, body.model_seq_id, spec, body.user_metadata, "create_model", body
        )

    def load(self, text: bytes) -> dict[str, Any]:
        """Load weights into a model, or into a new model if the body names a session."""
        if read(bodies.SomeOrderedBody, text).model_id is not None:
            return self.ordered("load_weights", text)
        body = read(bodies.LoadBody, text)
        if body.session_id is None or body.model_seq_id is None:
            raise InputError("load_weights: expected model_id and seq_id, or session_id and model_seq_id")
        if body.base_model is not None:
            self._check_base(body.base_model)
        spec = spec_of(self.checkpoints.need(body.path, TRAINING)["spec"])
        return self._new_model(
            body.session_id, body.model_seq_id, spec, body.user_metadata, "load_weights", body
        )

    def ordered(self, kind: str, text: bytes) -> dict[str, Any]:
        """Accept a call that has a place in its model's order. A wrong call takes its place, too."""
        place = read(bodies.OrderedBody, text)
        refused: InputError | None = None
        try:
            known = bodies.ORDERED[kind]
            if known is None:
                raise InputError(
                    f"{kind} is not served; the folder of a sampler's checkpoint is in peft's format"
                )
            read(known, text)
        except InputError as error:
            refused = error
        return self.admit(place.model_id, place.seq_id, kind, text, refused)

    def finish_session(self, session: str) -> None:
        self._check_session(session)
        self.journal.write("UPDATE sessions SET finished = 1 WHERE id = ?", session)
        self._presence.leave(session)

    def hear(self, session: str) -> None:
        """Record that a session's client is alive.

        Raises:
            NotThere: there is no such session.
            Gone: the session is finished; the SDK then sends no more heartbeats.
        """
        self._check_session(session)
        if self.journal.row("SELECT 1 FROM sessions WHERE id = ? AND finished", session) is not None:
            raise Gone(f"session {session} is finished")
        self._presence.hear(session)

    def _new_model(
        self,
        session: str,
        number: int,
        spec: ModelSpec,
        metadata: Mapping[str, Any] | None,
        kind: str,
        body: BaseModel,
    ) -> dict[str, Any]:
        self._check_session(session)
        model = f"{session}:train:{number}"
        self.journal.write(
            "INSERT OR IGNORE INTO models (id, session, spec, metadata) VALUES (?,?,?,?)",
            model,
            session,
            json.dumps(asdict(spec)),
            json.dumps(metadata),
        )
        return self.admit(model, 0, kind, packed(body))

    def forward_backward(self, body: bytes) -> dict[str, Any]:
        request = read_request(body)
        kind = "forward" if request.forward_only else "forward_backward"
        if request.seq_id < 1:
            raise InputError(f"seq_id={request.seq_id}: expected 1 or more")
        refused: InputError | None = None
        try:
            check(request.loss_fn, loss_options(request), data_of(request), self.base.limits)
        except InputError as error:
            refused = error
        canonical = request.SerializeToString(deterministic=True)
        return self.admit(request.model_id, request.seq_id, kind, canonical, refused)

    def admit(
        self, model: str, seq: int, kind: str, body: bytes, refused: InputError | None = None
    ) -> dict[str, Any]:
        """Record a call once, and return its id.

        Args:
            refused: why the call is not run. It still uses its number, because the client goes on counting.

        Raises:
            InputError: the call is rejected, now or at its first arrival.
            NotThere: there is no such model.
        """
        self.need_model(model)
        if self._trainer.broken is not None:
            raise InputError(BROKEN.format(reason=self._trainer.broken))
        self._presence.hear(model.partition(":")[0])
        call = Call(f"{model}/{seq}", model, seq, kind, body)
        answer = None if refused is None else failure(str(refused), "user")
        digest = hashlib.sha256(kind.encode() + body).hexdigest()
        earlier = self.journal.admit(call, digest, answer)
        if earlier is not None and earlier != digest:
            raise InputError(f"call {seq} of model {model} {OTHER_CALL}")
        if refused is not None:
            self._trainer.notify()
            raise refused
        self._trainer.notify()
        return {"request_id": call.id, "model_id": model}

    def need_model(self, model: str) -> Mapping[str, Any]:
        row = self.journal.row("SELECT * FROM models WHERE id = ?", model)
        if row is None:
            raise NotThere(f"there is no model {model!r}; expected the model_id that create_model returned")
        return dict(row)

    def sample(self, body: bodies.SampleBody) -> dict[str, Any]:
        if body.num_samples > MOST_SAMPLES:
            raise InputError(f"num_samples={body.num_samples}; expected {MOST_SAMPLES} at most")
        tokens, drawn = body.prompt.tokens(), body.sampling_params
        limits = self.base.limits
        if not tokens or min(tokens) < 0 or max(tokens) >= limits.vocab_size:
            raise InputError(f"the prompt needs one token or more, from 0 to {limits.vocab_size - 1}")
        # Without a number a call can't repeat an earlier one.
        number = secrets.token_hex(8) if body.seq_id is None else body.seq_id
        call = f"{body.sampling_session_id or secrets.token_hex(8)}/sample/{number}"
        stop = [drawn.stop] if isinstance(drawn.stop, str) else list(drawn.stop or [])
        sampling = Sampling(
            max_tokens=drawn.max_tokens or 0,
            temperature=drawn.temperature,
            top_k=max(drawn.top_k, 0),
            top_p=drawn.top_p,
            stop=tuple(text for text in stop if isinstance(text, str)),
            ignore_eos=drawn.stop == [],
        )
        scored = body.prompt_logprobs_last_n or len(tokens) if body.prompt_logprobs else 0
        seed = secrets.randbits(31) if drawn.seed is None else drawn.seed
        stop_tokens = tuple(token for token in stop if isinstance(token, int))
        job = Job(call, tokens, sampling, body.num_samples, seed, stop_tokens, scored)
        self._sampler.admit(self._weights_of(body), job, hashlib.sha256(packed(body)).hexdigest())
        names = [f"{call}/{place}" for place in range(body.num_samples)]
        return {"request_id": call, "sample_sequence_ids": names}

    def _weights_of(self, body: bodies.SampleBody) -> str | None:
        """Return the folder of a call's weights; None: the base's."""
        path = body.model_path
        if body.sampling_session_id is not None:
            path = self.need_sampler(body.sampling_session_id)["path"]
        if path is None:
            return None
        return str(self.checkpoints.need(path, SAMPLER)["folder"])

    def need_sampler(self, sampler: str) -> Mapping[str, Any]:
        row = self.journal.row("SELECT * FROM samplers WHERE id = ?", sampler)
        if row is None:
            raise NotThere(f"there is no sampling session {sampler!r}")
        return dict(row)

    def create_sampling_session(self, body: bodies.SamplingSessionBody) -> str:
        self._check_session(body.session_id)
        if body.model_path is not None:
            self.checkpoints.need(body.model_path, SAMPLER)
        else:
            self._check_base(body.base_model or "")
        sampler = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
        insert = "INSERT OR REPLACE INTO samplers VALUES (?,?,?)"
        self.journal.write(insert, sampler, body.session_id, body.model_path)
        return sampler

    def join_sampling_session(self, body: bodies.JoinBody) -> int:
        """Return a number for one more client of a sampling session; the first client has 0."""
        self.need_sampler(body.sampling_session_id)
        with self.journal.transaction():
            self.journal.write("INSERT INTO joined VALUES (?)", body.sampling_session_id)
            count = "SELECT COUNT(*) AS number FROM joined WHERE sampler = ?"
            (row,) = self.journal.rows(count, body.sampling_session_id)
        return int(row["number"])

    def cancel(self, call: str) -> None:
        self._sampler.cancel(call)

    async def answer_of(self, call: str) -> Answer | None:
        """Return an answer, or None if it takes longer than POLL_S.

        Raises:
            Gone: the call is unknown.
        """
        event = self._waiters.expect(call)
        try:
            ends = time.monotonic() + POLL_S
            while (made := await asyncio.to_thread(self._look, call)) is None:
                left = ends - time.monotonic()
                if left <= 0:
                    return None
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    return None
            return made
        finally:
            self._waiters.forget(call, event)

    def _look(self, call: str) -> Answer | None:
        try:
            if "/sample/" in call:
                return self._sampler.answer_of(call)
            answer = self.journal.answer_of(call)
            if answer is None and self._trainer.broken is not None:
                return failure(BROKEN.format(reason=self._trainer.broken), "server")
            return answer
        except KeyError:
            raise Gone(f"there is no call {call!r}, or its answer is gone") from None

    def info(self, model: str) -> dict[str, Any]:
        spec = spec_of(self.need_model(model)["spec"])
        return {
            "type": "get_info",
            "model_id": model,
            "model_name": self.base.name,
            "is_lora": spec.rank is not None,
            "lora_rank": spec.rank,
            "model_data": {"arch": None, "model_name": self.base.name, "tokenizer_id": self._tokenizer()},
        }

    def _tokenizer(self) -> str | None:
        """Return where a client on this machine finds the tokenizer; None: use the model's name."""
        return self.base.name if Path(self.base.name).is_dir() and ":" not in self.base.name else None

    def _check_base(self, name: str) -> None:
        if name != self.base.name and name not in self.base.aliases:
            raise InputError(
                f"base_model={name!r} is not served here; expected {self.base.name!r} or "
                f"{', '.join(sorted(map(repr, self.base.aliases)))}"
            )

    def _check_session(self, session: str) -> None:
        if self.journal.row("SELECT 1 FROM sessions WHERE id = ?", session) is None:
            raise NotThere(f"there is no session {session!r}; expected one that create_session returned")


def packed(body: BaseModel) -> bytes:
    return body.model_dump_json(exclude_unset=True).encode()


def read(kind: type[BodyType], text: bytes) -> BodyType:
    """Parse a body of a kind.

    Raises:
        InputError: the body has a wrong field; the message names the first one.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise InputError(f"{where}: {re.sub(r'^Value error, ', '', first['msg'])}") from None
