"""The site of docs/: its reference has every key, and its own hooks do what they say."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import whetstone
from rollout_workers.settings import RolloutSettings
from services.commands.listing import KINDS, TABLES
from services.config import compose
from services.config.settings import RunSettings

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs/site"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hooks import each other by their bare names, as in MkDocs."""
    monkeypatch.syspath_prepend(str(SITE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == SITE:
            del sys.modules[name]


@pytest.fixture
def reference(site: None) -> ModuleType:
    import configuration_reference

    return configuration_reference


def keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a configuration; those of a list's entries as if each stood alone."""
    for name, value in tree.items():
        entries = value if isinstance(value, list) else [value]
        inner = [entry for entry in entries if isinstance(entry, Mapping)]
        for entry in inner:
            yield from keys(entry, f"{prefix}{name}.")
        if not inner:
            yield prefix + name


def test_the_reference_has_every_key_of_the_default_configuration(reference: ModuleType) -> None:
    resolved = compose.run_settings(["model.path=gpt2"]).resolved()
    pages = reference.run_page() + "".join(reference.kind_page(kind) for kind in KINDS)
    # `name` is written as algorithm=NAME, and stands there as `algorithm`.
    names = {f"{TABLES[kind][0]}.name" for kind in KINDS}
    expected = set(keys(resolved)) - names
    assert {"rollout.max_tokens", "algorithm.kl.coefficient", "model.adapter.kind"} <= expected
    assert [key for key in sorted(expected) if f'id="{key}"' not in pages] == []


def test_the_reference_says_the_type_the_default_and_the_comment(reference: ModuleType) -> None:
    by_name = {key.name: key for key in reference.keys_of(RunSettings)}
    top_k = by_name["rollout.top_k"]
    assert (top_k.default, top_k.type, top_k.description) == ("0", "int, >= 0", "0: no limit")
    assert by_name["data.folder"].default == "null"
    assert {f"rollout.{name}" for name in RolloutSettings.model_fields} <= set(by_name)


def test_a_nested_default_is_its_owners(reference: ModuleType) -> None:
    page = reference.kind_page("algorithms")
    grpo = page[page.index("## grpo") : page.index("## nll")]
    row = next(line for line in grpo.splitlines() if 'id="algorithm.kl.coefficient"' in line)
    assert "<code>0.04</code>" in row  # KLSettings' own is 0.1


def test_no_two_keys_of_a_page_share_an_anchor(reference: ModuleType) -> None:
    anchors = re.findall(r'id="([^"]+)"', reference.run_page())
    assert len(anchors) > 100 and len(set(anchors)) == len(anchors)


def test_the_python_reference_has_every_name_of_whetstone_once(site: None) -> None:
    import python_reference

    entries = re.findall(r"^::: whetstone\.(\w+)$", python_reference.page(), re.MULTILINE)
    assert sorted(entries) == sorted(whetstone.__all__)


def test_links_out_of_the_folder_lead_to_pages_of_the_site(site: None, tmp_path: Path) -> None:
    import outside_links

    docs = tmp_path / "docs"
    for name in ("docs/results/a.md", "CONTRIBUTING.md", "conf/task/b.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a: 1")
    places = [outside_links.uri(tmp_path / name, docs) for name in ("docs/results/a.md", "CONTRIBUTING.md")]
    assert places == ["results/a.md", "project/CONTRIBUTING.md"]
    assert outside_links.uri(tmp_path / "conf/task/b.yaml", docs) == "project/conf/task/b.yaml.md"
    assert outside_links.shown(tmp_path / "conf/task/b.yaml") == "# b.yaml\n\n~~~~yaml\na: 1\n~~~~\n"
    assert outside_links.shown(tmp_path / "conf/task") == "# task\n\n- `b.yaml`\n"


def test_a_notebook_becomes_a_page(site: None) -> None:
    import notebook_pages

    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [{"output_type": "stream", "text": ["1\n"]}, {"data": {"image/png": "aGk=\n"}}],
        },
    ]
    page = notebook_pages.page({"cells": cells}, "first")
    assert page.startswith('# A\ntext\n\n<p><a href="first.ipynb" download>')
    assert "~~~~python\nprint(1)\n~~~~\n\n~~~~text\n1\n~~~~" in page
    assert 'src="data:image/png;base64,aGk="' in page
    assert notebook_pages.on_page_markdown("[x](a.ipynb#b) a.ipynb") == "[x](a.md#b) a.ipynb"


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script src="https://a.b/c.js">', True),
        ('<link rel="stylesheet" href="//a.b/c.css">', True),
        ('<link rel="preconnect" href="https://a.b">', True),
        ("a { background: url(https://a.b/c.png) }", True),
        ('<img src="a.png"><a href="https://a.b">a</a><link rel="icon" href="b.png">', False),
    ],
)
def test_what_a_page_would_load_is_found(site: None, text: str, loads: bool) -> None:
    import no_network

    assert bool(no_network.loaded(text)) is loads


def test_every_page_of_docs_has_its_place_in_the_navigation() -> None:
    class AnyTag(yaml.SafeLoader):
        pass

    AnyTag.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    text = (ROOT / "mkdocs.yml").read_text()
    settings = yaml.load(text, AnyTag)
    named = set(leaves(settings["nav"]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - named == set()


def leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from leaves(inner)
