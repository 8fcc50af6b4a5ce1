"""A service whose engine is vLLM: what it draws has the log-probabilities of the trained weights."""

from pathlib import Path

import pytest
from tinker import types

from tests.services.training.service.served import client_of, serving, texts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

PROMPT = [3, 10, 17]


def test_vllm_draws_with_the_base_and_with_trained_weights(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path, "--engine", "vllm") as server:
        client = client_of(server).create_lora_training_client(str(tiny), rank=4, seed=5).result()
        base = client_of(server).create_sampling_client(base_model=str(tiny)).result()
        client.forward_backward(texts(0), "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=3e-2)).result()
        trained = client.save_weights_and_get_sampling_client().result()
        prompt, greedy = types.ModelInput.from_ints(PROMPT), types.SamplingParams(max_tokens=8, temperature=0)
        for _ in range(2):  # the engine goes back to the base, and to the weights again
            (drawn,) = trained.sample(prompt, 1, greedy).result().sequences
            before = base.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *drawn.tokens])).result()
            after = trained.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *drawn.tokens])).result()
            whole = [*PROMPT, *drawn.tokens]
            scored = types.Datum(
                model_input=types.ModelInput.from_ints(whole[:-1]),
                loss_fn_inputs={"target_tokens": whole[1:]},
            )
            passed = client.forward([scored], "cross_entropy").result()
            learner = passed.loss_fn_outputs[0]["logprobs"].tolist()
            assert drawn.logprobs == pytest.approx(learner[len(PROMPT) - 1 :], abs=1e-3)
            assert after[1:] == pytest.approx(learner, abs=1e-3)
            assert before[1:] != pytest.approx(learner, abs=1e-2)
