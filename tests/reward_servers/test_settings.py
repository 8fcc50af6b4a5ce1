"""Valid and refused settings of the reward servers."""

from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from reward_servers.settings import RewardServersSettings, ServerSettings, parts


def servers(**options: Any) -> RewardServersSettings:
    return build(RewardServersSettings, options, "reward_servers")


def test_a_part_is_written_as_a_name_or_flat() -> None:
    rouge, mine = parts(["rouge", {"name": "pkg.mod:Mine", "weight": 2, "depth": 3, "options": {"width": 4}}])
    assert (rouge.name, rouge.label, rouge.weight, rouge.options) == ("rouge", "rouge", 1.0, {})
    assert (mine.label, mine.weight, mine.options) == ("Mine", 2.0, {"width": 4, "depth": 3})
    assert parts(rouge) == (rouge,)
    assert parts(None) == parts([]) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["rouge", {"name": "rouge", "rouge_type": "rouge1"}], "both labelled 'rouge'"),
        (3, "got 3; expected a name"),
        ({"weight": 1.0}, "reward.name: is required"),
        ({"name": "rouge", "weight": "much"}, "reward.weight: got 'much'"),
        ({"name": "rouge", "weight": float("nan")}, "finite"),
        ({"name": "rouge", "label": "a.b"}, "reward.label: got 'a.b'"),
    ],
)
def test_wrong_parts_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parts(value)


def test_labels_tell_two_of_a_kind_apart() -> None:
    labelled = parts(["rouge", {"name": "rouge", "label": "rouge1", "rouge_type": "rouge1"}])
    assert [part.label for part in labelled] == ["rouge", "rouge1"]


def test_an_entry_stands_over_the_default() -> None:
    settings = servers(default={"timeout_s": 5.0, "max_replicas": 3}, rouge={"replicas": 2})
    assert settings.for_label("length") == ServerSettings(timeout_s=5.0, max_replicas=3)
    # a fixed number takes back the default's bounds, the rest of the default stays
    assert settings.for_label("rouge") == ServerSettings(timeout_s=5.0, replicas=2)


def test_settings_survive_being_written_down() -> None:
    settings = servers(default={"timeout_s": 5.0, "max_replicas": 3}, rouge={"replicas": 2})
    again = servers(**settings.model_dump(mode="json"))
    for label in ("rouge", "length"):
        assert again.for_label(label) == settings.for_label(label)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"htp_port": 1}, r"reward_servers.htp_port: there is no such option; did you mean 'http_port'"),
        (
            {"rouge": {"replica": 2}},
            r"reward_servers.rouge.replica: there is no such option; did you mean 'rep",
        ),
        ({"default": {"batchsize": 2}}, r"reward_servers.default.batchsize: .* did you mean 'batch_size'"),
        ({"rouge": {"replicas": 0}}, r"reward_servers.rouge.replicas: got 0"),
        ({"rouge": {"timeout_s": "long"}}, r"reward_servers.rouge.timeout_s: got 'long'"),
        ({"rouge": {"replicas": 2, "max_replicas": 3}}, "one or the other"),
        ({"rouge": {"min_replicas": 3, "max_replicas": 2}}, "min_replicas=3 is above max_replicas=2"),
        ({"rouge": {"max_replicas": 2, "target_ongoing_requests": 99}}, "never scale up"),
        ({"http_port": 70000}, "http_port: got 70000"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        servers(**options)


def test_an_entry_needs_a_server_of_its_label() -> None:
    settings = servers(rogue={"replicas": 2})
    with pytest.raises(InputError, match=r"reward_servers.rogue: .* did you mean 'rouge'"):
        settings.check_labels(["rouge", "length"])
    settings.check_labels(["rogue"])


def test_a_label_must_not_hide_an_option() -> None:
    with pytest.raises(InputError, match="'default' is an option"):
        servers().check_labels(["default"])
