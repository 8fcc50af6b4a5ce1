"""Server-sent events: wherever the network cuts the stream, the same events are read."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_workers.tools import event_stream

# A text may hold what other readers of lines take for an end, and blanks at either side.
DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
TOLD = st.lists(st.tuples(st.sampled_from(["chunk", "end"]), DATA), max_size=4)


def read(pieces: list[bytes]) -> list[tuple[str, str]]:
    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def reading() -> list[tuple[str, str]]:
        return [event async for event in event_stream.events(arriving())]

    return asyncio.run(reading())


@settings(deadline=None)
@given(TOLD, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200), max_size=6))
def test_cuts_and_line_ends_change_nothing(events: list[tuple[str, str]], end: str, cuts: list[int]) -> None:
    lines = [f": ping{end}{end}", *(f"event: {kind}{end}data: {data}{end}{end}" for kind, data in events)]
    sent = ("".join(lines) + f": over{end}").encode()
    places = [0, *sorted(cuts), len(sent)]
    pieces = [sent[i:j] for i, j in pairwise(places)]
    assert read(pieces) == events


def test_data_of_several_lines_is_joined_and_other_fields_are_left_out() -> None:
    assert read([b"id: 7\nevent: end\ndata: a\ndata:b\nretry: 3\n\ndata\n"]) == [("end", "a\nb")]
    assert read([b"event: end\ndata: cut off\n"]) == []


def test_a_stream_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read([b"data: 1234", b"5678\n\n"])
