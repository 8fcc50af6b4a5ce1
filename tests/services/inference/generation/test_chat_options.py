"""The options --template, --system and --template-options over those of a run."""

import argparse
import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from services.inference.generation.chat_options import with_chosen_chat
from services.inference.generation.run_model import RunModel, find_model
from tests.chat_templates import DEFAULT_SYSTEM, make_chat_model

OF_THE_RUN = {"system": "Be brief.", "options": {"mood": "merry"}, "date": "2026-01-31"}
DAY = datetime.date(2026, 1, 31)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RunModel:
    folder = tmp_path_factory.mktemp("run")
    make_chat_model(folder / "model", DEFAULT_SYSTEM)
    config = {"model": {"chat": OF_THE_RUN}, "environment": {"name": "single_turn", "template": "chat"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return find_model(str(folder))


def chosen(model: RunModel, **options: str) -> ChatForm | None:
    named = {"template": None, "system": None, "template_options": None, **options}
    return with_chosen_chat(model, argparse.Namespace(**named)).chat


def test_what_is_not_given_stays_the_runs(model: RunModel, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    kept, template = ChatForm(None, "Be brief.", {"mood": "merry"}, DAY), str(tmp_path / "own.jinja")
    assert chosen(model, template=template) == replace(kept, template="{{ messages }}")
    more = chosen(model, template="tokenizer", template_options=json.dumps({"loud": True}))
    assert more == replace(kept, options={"mood": "merry", "loud": True})
    assert chosen(model, template=template, system="Hi.") == replace(
        kept, template="{{ messages }}", system="Hi."
    )
    assert chosen(model, template="none") is None


def test_an_empty_system_message_means_none(model: RunModel) -> None:
    bare = ChatForm(None, None, {"mood": "merry"}, DAY)
    assert chosen(model, system="") == chosen(model, template="tokenizer", system="") == bare
    plain = with_chosen_chat(model, argparse.Namespace(template="none", system=None, template_options=None))
    assert chosen(plain, system="") is None
    with pytest.raises(InputError, match="this model reads plain text: give --template tokenizer"):
        chosen(plain, system="Hi.")
