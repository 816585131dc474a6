"""Where a row stands, in the words a person would look it up by: the file, and a number that counts from 1.

Of a text file that is the line, as an editor shows it, blank lines included; of a table the row. Row numbers inside the
program (`dataset[0]`, ids, samplers) count from 0 and are shown to nobody.
"""

from __future__ import annotations

TEXT_FILES = (".jsonl", ".ndjson", ".json")


def counted(file: str, number: int) -> str:
    """`line 7` of a text file, `row 7` of anything else."""
    return f"{'line' if file.endswith(TEXT_FILES) else 'row'} {number}"


def place_words(file: str, number: int) -> str:
    return f"{file}, {counted(file, number)}"
