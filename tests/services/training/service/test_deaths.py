"""A killed trainer or server loses nothing that was acknowledged: the weights are equal to the bit."""

from pathlib import Path

import pytest
import tinker

from tests.services.training.service.served import Server, client_of, equal, serving, train

pytestmark = pytest.mark.slow


def trained(server: Server, seed: int = 5) -> tinker.TrainingClient:
    client: tinker.TrainingClient = (
        client_of(server).create_lora_training_client(str(server.model), rank=4, seed=seed).result()
    )
    return client


def test_a_trainer_killed_between_gradients_and_steps(server: Server) -> None:
    undisturbed = train(trained(server), "undisturbed")
    starts = server.state()["trainer_starts"]

    def kill(step: int) -> None:
        if step in (1, 2):
            server.kill_trainer()

    disturbed = train(trained(server), "disturbed", kill)
    assert server.state()["trainer_starts"] == starts + 2
    for name in ("weights", "optimizer"):
        assert equal(server.tensors(disturbed, name), server.tensors(undisturbed, name))


@pytest.mark.parametrize("options", [(), ("--full",)], ids=["adapter", "full"])
def test_a_server_killed_between_gradients_and_steps(
    tiny: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with serving(tiny, tmp_path / "service", *options) as server:
        undisturbed = train(trained(server), "undisturbed")

        def kill(step: int) -> None:
            if step == 2:
                server.kill()
                server.start()

        disturbed = train(trained(server), "disturbed", kill)
        for name in ("weights", "optimizer"):
            assert equal(server.tensors(disturbed, name), server.tensors(undisturbed, name))
