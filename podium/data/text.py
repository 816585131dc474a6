"""Finding an answer in a response: the last boxed expression, the last tag, the last number.

Plain string work that several families share; nothing here decides whether an answer is right.
"""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?(?:\d[\d,]*\.?\d*|\.\d+)")


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`) whose braces close."""
    for start in sorted((m.end() for m in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)), reverse=True):
        depth = 1
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start:place].strip()
    return None


def last_tag(text: str, tag: str) -> str | None:
    """The content of the last `<tag>...</tag>`."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return found[-1].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number, without thousands separators and a trailing dot."""
    found = [plain_number(match) for match in NUMBER.findall(text)]
    found = [number for number in found if number.strip("-.")]
    return found[-1] if found else None


def plain_number(text: str) -> str:
    return text.replace(",", "").replace("$", "").strip().rstrip(".")
