"""Text that streams is the text of the whole, and takes nothing back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from podium.serving.text import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes, so that characters are cut."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")


@given(st.text(alphabet="abé€😀", max_size=20), st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=2))
def test_pieces_add_up_to_the_whole(text: str, stops: list[str]) -> None:
    tokens = list(text.encode())
    stream = TextStream(Bytes(), tuple(stops))
    pieces = [stream.more(tokens[:count], ended=count == len(tokens)) for count in range(1, len(tokens) + 1)]
    cut = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    assert "".join(pieces) == stream.whole(tokens) == text[:cut]
