"""Loops in the manner of the cookbook's `sl_loop` and `rl_loop`, by the official SDK: the model learns."""

import pytest
import tinker
from tinker import types

from tests.services.training.service.served import Server, client_of, datum

pytestmark = pytest.mark.slow
FIRST = 3  # the token of the number 0


def trained(server: Server) -> tinker.TrainingClient:
    client: tinker.TrainingClient = (
        client_of(server).create_lora_training_client(str(server.model), rank=8, seed=1).result()
    )
    return client


def test_a_supervised_loop_learns_to_count(server: Server) -> None:
    client = trained(server)
    batch = [datum([FIRST + start + place for place in range(8)]) for start in range(0, 32, 4)]
    losses = []
    for _ in range(40):
        passed = client.forward_backward(batch, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(passed.result().metrics["loss:sum"] / (7 * len(batch)))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("loss", ["importance_sampling", "cispo"])
def test_a_loop_of_reinforcement_raises_the_reward(server: Server, loss: types.LossFnType) -> None:
    """A token's reward is 1 if it is an even number, as half of them are; the baseline is their mean."""
    client, rewards = trained(server), []
    prompts = [types.ModelInput.from_ints([FIRST + number]) for number in range(4)]
    for step in range(12):
        sampler = client.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=6, seed=step)
        futures = [sampler.sample(prompt, 16, params) for prompt in prompts]
        drawn = [
            (prompt, sequence)
            for prompt, future in zip(prompts, futures, strict=True)
            for sequence in future.result().sequences
        ]
        scores = [_is_even(token) for _, sequence in drawn for token in sequence.tokens]
        rewards.append(sum(scores) / len(scores))
        data = [_graded(prompt, sequence, rewards[-1]) for prompt, sequence in drawn]
        client.forward_backward(data, loss).result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert sum(rewards[-6:]) / 6 > rewards[0] + 0.05


def _is_even(token: int) -> float:
    return float(token >= FIRST and (token - FIRST) % 2 == 0)


def _graded(prompt: types.ModelInput, drawn: types.SampledSequence, baseline: float) -> types.Datum:
    before, tokens = prompt.length - 1, list(drawn.tokens)
    return types.Datum(
        model_input=prompt.append(types.EncodedTextChunk(tokens=tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": [0] * before + tokens,
            "logprobs": [0.0] * before + list(drawn.logprobs or []),
            "advantages": [0.0] * before + [_is_even(token) - baseline for token in tokens],
        },
    )
