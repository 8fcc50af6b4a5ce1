"""The official SDK against a served tiny model: training, sampling, saving, refusals."""

import math
import pickle
from typing import Any, get_args

import httpx
import pytest
import tinker
import torch
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import LossFnType

from learner.training_service.losses import LOSSES, UNPUBLISHED
from services.training.service.app import FLAGS
from tests.services.training.service.served import KEY, Server, client_of, datum, equal, texts, train

pytestmark = pytest.mark.slow
STEP = types.AdamParams(learning_rate=3e-3)


def trained(server: Server, seed: int = 5, rank: int = 4) -> tinker.TrainingClient:
    made = client_of(server).create_lora_training_client(str(server.model), rank=rank, seed=seed)
    client: tinker.TrainingClient = made.result()
    return client


def state(server: Server, client: tinker.TrainingClient, name: str) -> dict[str, torch.Tensor]:
    return server.tensors(client.save_state(name).result().path)


def test_a_client_learns_what_it_drives_and_finds_the_tokenizer(server: Server) -> None:
    client = trained(server)
    info = client.get_info()
    assert (info.is_lora, info.lora_rank) == (True, 4)
    assert client.get_tokenizer().decode([3, 4]) == "0 1"
    known = tinker.RestClient(base_url=server.address, api_key=KEY).get_server_capabilities().result()
    assert [model.model_name for model in known.supported_models] == [str(server.model)]


def test_calls_add_up_to_one_call_with_all_data(server: Server) -> None:
    apart, together = trained(server), trained(server)
    for number in range(3):
        apart.forward_backward(texts(number), "cross_entropy").result()
    together.forward_backward([text for n in range(3) for text in texts(n)], "cross_entropy").result()
    norms = [client.optim_step(STEP).result().metrics["gradient_norm"] for client in (apart, together)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    ours, theirs = state(server, apart, "sum"), state(server, together, "sum")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=2e-5)


def test_a_forward_call_leaves_no_gradient(server: Server) -> None:
    client = trained(server)
    before = state(server, client, "before")
    seen = client.forward(texts(1), "cross_entropy").result()
    assert "gradient_norm" in client.optim_step(STEP).result().metrics
    assert equal(state(server, client, "after"), before)
    logprobs = [float(v) for out in seen.loss_fn_outputs for v in out["logprobs"].data]
    assert seen.metrics["loss:sum"] == pytest.approx(-sum(logprobs), rel=1e-5)


def test_a_call_that_is_sent_twice_counts_once(server: Server) -> None:
    once, twice = trained(server), trained(server)
    once.forward_backward(texts(1), "cross_entropy").result()
    body = types.ForwardBackwardInput(data=texts(1), loss_fn="cross_entropy")
    request = types.ForwardBackwardRequest(forward_backward_input=body, model_id=twice.model_id, seq_id=1)
    sent = forward_backward_request_to_proto(request).SerializeToString()
    answers = [_post(server, "forward_backward", sent) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    other = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=texts(2), loss_fn="cross_entropy"),
        model_id=twice.model_id,
        seq_id=1,
    )
    refused = _post(server, "forward_backward", forward_backward_request_to_proto(other).SerializeToString())
    assert refused.status_code == 400 and "sent before with other content" in refused.text
    twice._get_request_id()  # the call above had the first number
    twice._turn_counter = 1
    for client in (once, twice):
        client.optim_step(STEP).result()
    assert equal(state(server, once, "once"), state(server, twice, "once"))


def test_two_sessions_in_turn_equal_each_alone(server: Server) -> None:
    alone = {rank: server.tensors(train(trained(server, seed=rank, rank=rank), "alone")) for rank in (2, 8)}
    clients = {rank: trained(server, seed=rank, rank=rank) for rank in (2, 8)}
    for step in range(4):
        futures = []
        for part in range(2):
            for client in clients.values():
                futures.append(client.forward_backward(texts(2 * step + part), "cross_entropy"))
        for client in clients.values():
            futures.append(client.optim_step(types.AdamParams(learning_rate=3e-3, weight_decay=0.01)))
        for future in futures:
            future.result()
    for rank, client in clients.items():
        assert equal(state(server, client, "in-turn"), alone[rank])


def test_a_state_resumes_to_the_bit(server: Server) -> None:
    client = trained(server)
    train(client, "half")
    for number in (11, 12):
        client.forward_backward(texts(number), "cross_entropy").result()
        client.optim_step(STEP).result()
    whole = state(server, client, "whole")
    path = f"tinker://{client.model_id}/weights/half"
    service = client_of(server)
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    fresh = service.create_training_client_from_state(path).result()
    for number in (11, 12):
        for trainer in (resumed, fresh):
            trainer.forward_backward(texts(number), "cross_entropy").result()
            trainer.optim_step(STEP).result()
    assert equal(state(server, resumed, "again"), whole)
    assert not equal(state(server, fresh, "again"), whole)  # it has lost the moments


def test_a_loss_of_ones_own_is_that_of_its_formula(server: Server) -> None:
    ours, theirs = trained(server), trained(server)

    def loss(data: Any, logprobs: Any) -> Any:
        return -torch.stack([logprob.sum() for logprob in logprobs]).sum(), {"mine:sum": 1.0}

    got = ours.forward_backward_custom(texts(4), loss).result()
    theirs.forward_backward(texts(4), "cross_entropy").result()
    assert got.metrics["mine:sum"] == 1.0
    for client in (ours, theirs):
        client.optim_step(STEP).result()
    left, right = state(server, ours, "own-2"), state(server, theirs, "own-2")
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-4, atol=1e-6)


def test_texts_are_drawn_from_the_trained_weights(server: Server) -> None:
    client = trained(server)
    for _ in range(40):
        client.forward_backward([datum([3, 9, 14, 20, 33, 1])], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    sampler = client.save_weights_and_get_sampling_client().result()
    greedy = types.SamplingParams(max_tokens=6, temperature=0.0)
    prompt = types.ModelInput.from_ints([3])
    drawn = sampler.sample(prompt, 2, greedy, include_prompt_logprobs=True).result()
    assert [sequence.tokens for sequence in drawn.sequences] == [[9, 14, 20, 33, 1]] * 2
    assert drawn.sequences[0].stop_reason == "stop"
    base = client_of(server).create_sampling_client(base_model=str(server.model)).result()
    assert base.sample(prompt, 1, greedy).result().sequences[0].tokens != [9, 14, 20, 33, 1]
    # Engine and trainer compute the same log-probabilities.
    scored = sampler.compute_logprobs(types.ModelInput.from_ints([3, 9, 14, 40])).result()
    passed = client.forward([datum([3, 9, 14, 40])], "cross_entropy").result()
    assert scored[0] is None
    assert scored[1:] == pytest.approx(list(passed.loss_fn_outputs[0]["logprobs"].data), abs=1e-4)


def test_a_seed_repeats_a_text_and_stop_tokens_end_it(server: Server) -> None:
    base = client_of(server).create_sampling_client(base_model=str(server.model)).result()
    prompt = types.ModelInput.from_ints([5, 6])

    def draw(**options: Any) -> list[list[int]]:
        params = types.SamplingParams(max_tokens=12, **options)
        return [list(sequence.tokens) for sequence in base.sample(prompt, 3, params).result().sequences]

    first = draw(seed=4)
    assert first == draw(seed=4) != draw(seed=5)
    assert len({tuple(tokens) for tokens in first}) > 1  # samples of one seed differ
    token = first[0][2]
    cut = draw(seed=4, stop=[token])
    assert cut[0] == first[0][: first[0].index(token) + 1]


def test_a_sampling_client_goes_to_other_processes(server: Server) -> None:
    base = client_of(server).create_sampling_client(base_model=str(server.model)).result()
    copies = [base, pickle.loads(pickle.dumps(base)), pickle.loads(pickle.dumps(base))]
    greedy = types.SamplingParams(max_tokens=4, temperature=0.0)
    prompts = [types.ModelInput.from_ints([first]) for first in (5, 40, 77)]
    alone = [base.sample(prompt, 1, greedy).result().sequences[0].tokens for prompt in prompts]
    futures = [client.sample(prompt, 1, greedy) for client, prompt in zip(copies, prompts, strict=True)]
    assert [future.result().sequences[0].tokens for future in futures] == alone


def test_each_loss_of_the_sdk_is_served_or_refused_by_name() -> None:
    """`custom` is a loss that a server runs; ours tells the SDK that it runs none, so the client does."""
    names = set(get_args(LossFnType))
    assert names == {*LOSSES, *UNPUBLISHED, "custom"} and not FLAGS["custom_loss_server_side"]


def test_wrong_calls_are_refused_in_plain_words_and_the_client_goes_on(server: Server) -> None:
    service, client = client_of(server), trained(server)
    with pytest.raises(tinker.BadRequestError, match="is not served here"):
        service.create_lora_training_client("another-model").result()
    with pytest.raises(tinker.BadRequestError, match="its formula is not published"):
        client.forward_backward(texts(1), "gspo").result()
    with pytest.raises(tinker.BadRequestError, match="loss_fn_inputs lack logprobs, advantages"):
        client.forward_backward(texts(1), "ppo").result()
    with pytest.raises(tinker.BadRequestError, match="the model has 0 to 102"):
        client.forward_backward([datum([3, 400, 5])], "cross_entropy").result()
    with pytest.raises(tinker.RequestFailedError, match="there is no checkpoint"):
        client.load_state("tinker://no/weights/state").result()
    client.forward_backward(texts(1), "cross_entropy").result()
    assert client.optim_step(STEP).result().metrics["gradient_norm"] > 0


def test_a_gradient_that_is_not_finite_moves_nothing(server: Server) -> None:
    client = trained(server)
    before = state(server, client, "before")
    client.forward_backward([datum([3, 4, 5], [3e38, 3e38])], "cross_entropy").result()
    client.forward_backward([datum([3, 4, 5], [3e38, 3e38])], "cross_entropy").result()
    with pytest.raises(tinker.RequestFailedError, match="but must be finite"):
        client.optim_step(STEP).result()
    assert equal(state(server, client, "after"), before)
    client.forward_backward(texts(1), "cross_entropy").result()
    assert math.isfinite(client.optim_step(STEP).result().metrics["gradient_norm"])


def test_checkpoints_are_listed_and_deleted(server: Server) -> None:
    client, rest = trained(server), tinker.RestClient(base_url=server.address, api_key=KEY)
    path = client.save_state("kept", user_metadata={"step": "1"}).result().path
    client.save_weights_for_sampler("drawn").result()
    listed = rest.list_checkpoints(client.model_id).result().checkpoints
    assert [checkpoint.checkpoint_id for checkpoint in listed] == ["sampler_weights/drawn", "weights/kept"]
    with pytest.raises(tinker.RequestFailedError, match="exists; expected another name"):
        client.save_state("kept").result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    left = rest.list_checkpoints(client.model_id).result().checkpoints
    assert [checkpoint.checkpoint_id for checkpoint in left] == ["sampler_weights/drawn"]
    assert rest.get_training_run(client.model_id).result().lora_rank == 4


def _post(server: Server, name: str, body: bytes) -> httpx.Response:
    headers = {"X-API-Key": KEY, "Content-Type": "application/x-protobuf"}
    return httpx.post(f"{server.address}/api/v1/{name}", content=body, headers=headers)
