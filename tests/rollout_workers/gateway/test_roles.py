"""Several roles of one policy, and a frozen partner, behind one key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from contracts.errors import InputError, WorkerError
from rollout_workers.environments.frozen_partner import FrozenPartner
from rollout_workers.gateway.frozen_model import FrozenModel
from rollout_workers.tools.tool_calls import HERMES
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.rollout_workers.gateway.served import Served, rollout_of, serve
from tests.until import until

ASK = [{"role": "user", "content": "What is three and four?"}]
THEN = {"role": "user", "content": "And then?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("model"), TEMPLATES["default_system"])


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serve(folder) as made:
        yield made


@pytest.fixture(scope="module")
def partner(folder: Path) -> Iterator[FrozenModel]:
    made = FrozenModel(FrozenPartner(model=str(folder), max_tokens=5), True, HERMES, most=8)
    yield made
    made.stop()


def say(client: OpenAI, model: str, talk: Any = ASK, **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=talk, **options).choices[0].message


def test_roles_have_sequences_of_their_own(served: Served) -> None:
    door = served.door()
    client = served.client(door)
    first = say(client, "policy/pro")
    say(client, "policy/con", [*ASK, first, THEN])  # it has not said this: its context is laid out anew
    say(client, "policy/pro", [*ASK, first, THEN])
    say(client, "gpt-4o")
    made = rollout_of(door)
    assert [(turn.role, turn.fresh) for turn in made.turns] == [
        *[("con", True), ("pro", True), ("pro", False), ("", True)]
    ]
    assert made.turns[0].num_observed > made.turns[1].num_observed


def test_a_role_draws_the_same_whichever_speaks_first(served: Served) -> None:
    texts = []
    for order in (("policy/pro", "policy/con", "any"), ("any", "policy/con", "policy/pro")):
        client = served.client(served.door())
        texts.append({model: say(client, model).content for model in order})
    assert texts[0] == texts[1] and len(set(texts[0].values())) > 1


@pytest.mark.parametrize("model", ["policy/", "policy/a/b", "policy/a b", "policy/" + "x" * 33])
def test_a_name_that_is_no_role_is_refused(served: Served, model: str) -> None:
    door = served.door()
    with pytest.raises(openai.NotFoundError, match="policy/critic"):
        say(served.client(door), model)
    assert not door.history.calls


def test_nothing_of_a_partner_is_recorded(served: Served, partner: FrozenModel) -> None:
    door, other = (served.door(lease, partner=partner.door, max_turns=2) for lease in (1, 2))
    client, before = served.client(door), len(served.engine.asked)
    options: Any
    for options in ({}, {"temperature": 0}):  # both leases have one seed
        assert say(client, "partner", **options) == say(served.client(other), "partner", **options)
    assert len(served.engine.asked) == before  # it has an engine of its own
    with pytest.raises(openai.PermissionDeniedError, match="max_turns"):
        say(client, "partner")
    assert door.is_cut
    say(client, "policy")  # the partner's answers are not counted as the model's
    assert [turn.role for turn in rollout_of(door).turns] == [""]


def test_a_partner_writes_no_more_than_its_own_limit(served: Served, partner: FrozenModel) -> None:
    client = served.client(served.door(partner=partner.door))
    reply = client.chat.completions.create(model="partner", messages=ASK, max_tokens=64)  # type: ignore[arg-type]
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 5


def test_a_talk_beyond_the_partners_window_cuts_the_episode(served: Served, partner: FrozenModel) -> None:
    door = served.door(partner=partner.door)
    say(served.client(door), "policy")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        say(served.client(door), "partner", [{"role": "user", "content": "x" * 2100}])
    assert door.is_full
    with pytest.raises(openai.BadRequestError, match="n: expected"):
        say(served.client(door), "partner", n=1000)
    with pytest.raises(openai.BadRequestError, match="n=30: expected"):
        say(served.client(door), "partner", n=30)
    assert door.is_full  # whatever is refused later


def test_without_a_partner_the_name_is_refused(served: Served) -> None:
    door = served.door()
    with pytest.raises(openai.NotFoundError, match="has none"):
        say(served.client(door), "partner")
    assert not door.history.calls and door.num_refused == 1


def test_a_partner_that_does_not_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"environment.partner_options.model=.* does not load"):
        FrozenModel(FrozenPartner(model=str(tmp_path / "none")), True, HERMES, most=1)


def test_a_partner_whose_engine_fails_is_noticed(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FrozenModel(FrozenPartner(model=str(folder)), True, HERMES, most=1)
    made.check()
    monkeypatch.setattr(made._thread.engine(), "step", None)
    client = served.client(served.door(partner=made.door)).with_options(timeout=30.0)
    with pytest.raises(openai.InternalServerError, match="the engine failed"):
        say(client, "partner")
    until(lambda: made._thread.failure is not None)
    with pytest.raises(WorkerError, match="frozen partner"):
        made.check()
    made.stop()
