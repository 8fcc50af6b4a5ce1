"""Experiments keep their settings: a change of one is meant, and recorded."""

import json

import pytest

from tests.golden import DIGESTS, digests


@pytest.mark.timeout(1200)  # it composes all experiments
def test_experiments_have_the_settings_that_were_recorded() -> None:
    recorded, current = json.loads(DIGESTS.read_text()), digests()
    changed = sorted(name for name in recorded | current if recorded.get(name) != current.get(name))
    assert not changed, f"settings changed; if that is meant: python -m tests.golden settings: {changed}"
