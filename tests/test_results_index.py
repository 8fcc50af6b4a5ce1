"""The index of all results is current, and finds what a page has."""

from pathlib import Path

from benchmarks.results_index import INDEX, RESULTS, index


def test_the_index_of_results_is_current() -> None:
    message = "out of date: python -m benchmarks.results_index"
    assert (RESULTS / INDEX).read_text(encoding="utf-8") == index(), message


def test_a_page_is_listed_with_its_tables_commits_and_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Speed\n\nCommit 8f27281.\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n![x](a.png)\n"
    )
    (tmp_path / "b.md").write_text("# Faults\n\n1234567 texts\n")
    text = index(tmp_path)
    assert "[Speed](a.md) | 1 | 8f27281\n" in text
    assert "[Faults](b.md) | 0 | not stated\n" in text
    assert "[![Speed](a.png)](a.md)" in text
