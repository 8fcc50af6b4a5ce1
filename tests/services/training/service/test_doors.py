"""The service's doors without its processes: keys, refusals, and a journal that counts a call once."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from contracts.errors import InputError
from learner.training_service.data import Datum, micro_batches
from learner.training_service.losses import MOST_TARGETS, Limits, check
from services.commands.serve_training import run
from services.training.service.app import MOST_BYTES, training_app
from services.training.service.bodies import MOST_RANK
from services.training.service.checkpoints import Checkpoints
from services.training.service.child import ANSWERS_WITHIN_S
from services.training.service.journal import Call, Journal, answer
from services.training.service.presence import Presence
from services.training.service.sampler_desk import SamplerDesk
from services.training.service.service import MOST_SAMPLES, Base, Service
from services.training.service.waiters import Waiters
from services.training.service.wire import messages, unpacked

TOKEN = "tml-a-token-of-a-test"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.write("INSERT INTO models (id, session, spec) VALUES ('m', 's', '{\"rank\": 2}')")
    yield journal
    journal.close()


def client(journal: Journal, folder: Path, token: str | None) -> TestClient:
    desk: Any = SimpleNamespace(broken=None, notify=lambda: None)  # calls stay in the journal
    child: Any = None
    waiters = Waiters()
    base = Base("tiny", frozenset(), False, Limits(103, 128))
    drawing = SamplerDesk(child, waiters)
    service = Service(base, journal, Checkpoints(folder, journal), desk, drawing, waiters, Presence())
    app = training_app(service, "127.0.0.1", token, dict)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def test_a_key_opens_the_door_and_another_does_not(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, TOKEN)
    assert caller.get("/api/v1/healthz").status_code == 401
    assert caller.get("/api/v1/healthz", headers={"X-API-Key": "tml-a-guess-of-a-test"}).status_code == 401
    assert caller.get("/api/v1/healthz", headers={"X-API-Key": TOKEN}).json() == {"status": "ok"}


def test_a_page_of_another_host_is_refused(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    refused = caller.get("/api/v1/healthz", headers={"Origin": "http://example.org"})
    assert refused.status_code == 403


def test_a_wrong_call_uses_its_place_up_and_a_retry_hears_the_same(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    journal.write("UPDATE models SET next = 1")
    wrong = {"model_id": "m", "seq_id": 1, "adam_params": {"beta1": 2.0}}
    for _ in range(2):
        refused = caller.post("/api/v1/optim_step", json=wrong)
        assert refused.status_code == 400 and "adam_params.beta1" in refused.json()["detail"]
    right = caller.post("/api/v1/optim_step", json={"model_id": "m", "seq_id": 2, "adam_params": {}})
    upcoming = journal.next_call()
    assert upcoming is not None and upcoming.id == right.json()["request_id"] == "m/2"


@pytest.mark.parametrize(
    ("rates", "field"),
    [
        ('{"learning_rate": Infinity}', "learning_rate"),
        ('{"grad_clip_norm": NaN}', "grad_clip_norm"),
        ('{"eps": 0}', "eps"),  # B's zeros make A's first step 0 / 0
    ],
)
def test_rates_that_make_weights_no_numbers_are_refused(
    journal: Journal, tmp_path: Path, rates: str, field: str
) -> None:
    body = f'{{"model_id": "m", "seq_id": 1, "adam_params": {rates}}}'
    refused = client(journal, tmp_path, None).post("/api/v1/optim_step", content=body)
    assert refused.status_code == 400 and f"adam_params.{field}" in refused.json()["detail"]


def test_a_seed_that_torch_does_not_take_is_refused(journal: Journal, tmp_path: Path) -> None:
    lora = {"rank": 2, "seed": 2**64}
    body = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": lora}
    refused = client(journal, tmp_path, None).post("/api/v1/create_model", json=body)
    assert refused.status_code == 400 and "lora_config.seed" in refused.json()["detail"]


def test_a_sample_call_is_known_by_its_number_and_content(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    journal.write("INSERT INTO samplers VALUES ('s:sample:0', 's', NULL)")

    def ask(token: int, number: int | None) -> Any:
        prompt = {"chunks": [{"tokens": [token]}]}
        body = {"prompt": prompt, "sampling_params": {}, "sampling_session_id": "s:sample:0"}
        return caller.post("/api/v1/asample", json=body if number is None else {**body, "seq_id": number})

    assert ask(5, 1).json() == ask(5, 1).json() != ask(5, 2).json()
    refused = ask(6, 1)
    assert refused.status_code == 400 and "sent before with other content" in refused.json()["detail"]
    assert ask(5, None).json()["request_id"] != ask(6, None).json()["request_id"]


def test_each_further_client_of_a_sampling_session_has_a_number(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    for sampler in ("one", "two"):
        journal.write("INSERT INTO samplers VALUES (?, 's', NULL)", sampler)
    numbers = [
        caller.post("/api/v1/join_sampling_session", json={"sampling_session_id": sampler}).json()
        for sampler in ("one", "one", "two")
    ]
    assert [answer["client_counter"] for answer in numbers] == [1, 2, 1]


def test_heartbeats_of_a_finished_session_end(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    session = caller.post("/api/v1/create_session", json={}).json()["session_id"]
    assert caller.post("/api/v1/session_heartbeat", json={"session_id": session}).status_code == 200
    caller.post(f"/api/v1/sessions/{session}/finish")
    assert caller.post("/api/v1/session_heartbeat", json={"session_id": session}).status_code == 410
    assert caller.post("/api/v1/session_heartbeat", json={"session_id": "other"}).status_code == 404


def bytes_of(*numbers: float, kind: type = np.int64) -> bytes:
    return np.array(numbers, kind).tobytes()


def message(**tensor: Any) -> Any:
    """A call of one text of two tokens, whose targets are a tensor of these fields."""
    pb = messages()
    request = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    datum = request.data.add()
    datum.model_input.add().encoded_text.tokens = bytes_of(3, 4, kind=np.int32)
    sparse = tensor.pop("sparse", None)
    targets = datum.loss_fn_inputs["target_tokens"]
    targets.MergeFrom(type(targets)(**{"dtype": pb.DTYPE_INT64, **tensor}))
    if sparse is not None:
        for field, numbers in sparse.items():
            setattr(targets.sparse_csr, field, bytes_of(*numbers))
    return request


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ({"dense": b"12345"}, "target_tokens"),
        ({"dense": bytes_of(3, 4), "shape": [-1, 2]}, "do not have the shape"),
        ({"dense": b"", "shape": [2, 0]}, "expected a target"),
        ({"dense": bytes_of(3.9, 4, kind=np.float32), "dtype": 1}, "expected integers"),
        (
            {
                "shape": [2, 10**12],
                "sparse": {"crow_indices": (0, 1, 2), "col_indices": (0, 0), "values": (3, 4)},
            },
            "bytes at most",
        ),
        (
            {"shape": [2, 2], "sparse": {"crow_indices": (0, 1, 2), "col_indices": (0, 9), "values": (3, 4)}},
            "target_tokens",
        ),
        (
            {
                "shape": [2, 2],
                "sparse": {"crow_indices": (0, 1, 2), "col_indices": (0, -1), "values": (3, 4)},
            },
            "a sparse tensor",
        ),
    ],
    ids=["bytes", "shape", "empty", "float", "huge", "column", "negative"],
)
def test_a_tensor_that_does_not_fit_uses_its_calls_place_up(
    journal: Journal, tmp_path: Path, tensor: dict[str, Any], reason: str
) -> None:
    caller = client(journal, tmp_path, None)
    journal.write("UPDATE models SET next = 1")
    sent = message(**tensor).SerializeToString()
    refused = caller.post("/api/v1/forward_backward", content=sent)
    assert refused.status_code == 400 and reason in refused.json()["detail"]
    (row,) = journal.rows("SELECT next FROM models")
    assert row["next"] == 2


def test_what_is_not_there_has_its_own_status(journal: Journal, tmp_path: Path) -> None:
    caller = client(journal, tmp_path, None)
    step = {"model_id": "other", "seq_id": 1, "adam_params": {}}
    assert caller.post("/api/v1/optim_step", json=step).status_code == 404
    assert caller.post("/api/v1/retrieve_future", json={"request_id": "m/9"}).status_code == 410


def test_calls_run_in_their_order_once(journal: Journal) -> None:
    journal.write("UPDATE models SET next = 1")
    second, first = Call("m/2", "m", 2, "optim_step", b"2"), Call("m/1", "m", 1, "forward_backward", b"1")
    assert journal.admit(second, "b") is None
    assert journal.next_call() is None  # its first call is on the way
    assert journal.admit(first, "a") is None
    assert journal.admit(first, "a") == "a"
    assert journal.next_call() == first
    journal.finish(first, answer({}), moves=True)
    assert journal.next_call() == second
    assert [call.id for call in journal.moved_since("m", -1)] == ["m/1"]
    journal.cover("m", 1, Path("state"))
    assert journal.moved_since("m", 1) == []


def test_bodies_are_unpacked_or_refused() -> None:
    import zstandard

    assert unpacked(zstandard.ZstdCompressor().compress(b"plain"), "zstd") == b"plain"
    assert unpacked(b"plain", "") == b"plain"
    with pytest.raises(InputError, match="is not zstd"):
        unpacked(b"plain", "zstd")
    with pytest.raises(InputError, match="expected zstd"):
        unpacked(b"plain", "br")


def test_a_token_that_the_sdk_can_not_send_is_refused() -> None:
    with pytest.raises(InputError, match="does not begin with tml-"):
        run(["model", "--token", "a-token-of-the-tests"])


def test_a_rank_above_all_layers_is_refused(journal: Journal, tmp_path: Path) -> None:
    body = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 10**9}}
    refused = client(journal, tmp_path, None).post("/api/v1/create_model", json=body)
    assert refused.status_code == 400
    assert "lora_config.rank: Input should be less than or equal to 1024" in refused.json()["detail"]


def test_targets_of_a_datum_have_a_bound_and_share_the_micro_batches_budget() -> None:
    def wide(places: int, width: int) -> Datum:
        return Datum(np.zeros(places, int), {"target_tokens": np.zeros((places, width), int)})

    with pytest.raises(
        InputError, match=r"datum 0: 512 tokens with \(1024,\) targets at each; expected 262144"
    ):
        check("cross_entropy", {}, [wide(512, 1024)], Limits(103, 1024))
    check("cross_entropy", {}, [wide(512, 512)], Limits(103, 1024))
    batches = micro_batches([wide(4, 8), wide(4, 8), wide(4, 1)], 64)
    assert [len(batch) for batch in batches] == [2, 1]


def test_the_page_tells_the_limits() -> None:
    page = (Path(__file__).parents[4] / "docs/training-service.md").read_text()
    limits = page[page.index("## Limits") :]
    for number in (MOST_RANK, MOST_SAMPLES, MOST_TARGETS, int(ANSWERS_WITHIN_S), MOST_BYTES // 2**20):
        assert re.search(rf"\b{number:,}\b", limits), number
