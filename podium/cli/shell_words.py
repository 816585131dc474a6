"""A launch script as a shell reads it, as far as settings go: words, quotes, variables, defaults, whole-number sums.

`read_words` gives the words of every command, with the script's own variables filled in. It runs nothing: what only a
running shell could know (`$(date)`, a variable set elsewhere) stays as it is written, with its `$`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
DEFAULT = re.compile(r"(\w+)(:?[-=])(.*)", re.DOTALL)
HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*(['\"]?)(\w+)\1")
DECLARING = ("export", "local", "readonly", "declare", "then", "else", "do", ":")
TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\$\{?[A-Za-z_]\w*\}?|[-+*/%()])")
MAX_DEPTH = 50


def read_words(text: str) -> list[str]:
    """The words of the script's commands and arrays, in order, without its assignments."""
    return _Reader(text).read()


@dataclass
class _Reader:
    text: str
    variables: dict[str, str] = field(default_factory=lambda: {"HOME": "~", "PWD": "."})
    at: int = 0
    words: list[str] = field(default_factory=list)
    """Of all commands that are complete."""
    command: list[str] = field(default_factory=list)
    word: str | None = None
    in_array: bool = False
    documents: list[str] = field(default_factory=list)
    """Ends of the here-documents that begin on the next line."""

    def read(self) -> list[str]:
        while self.at < len(self.text):
            self._step()
        self._end_command()
        return self.words

    def _step(self) -> None:
        char = self.text[self.at]
        if char == "\\":
            self._escape()
        elif char in "'\"":
            self._quoted(char)
        elif char in "$`":
            raw, self.at = _expansion(self.text, self.at)
            self._append_unquoted(expand(raw, self.variables))
        elif char == "#" and self.word is None:
            self.at = _find(self.text, "\n", self.at)
        elif char in " \t\r":
            self.at += 1
            self._end_word()
        elif char == "\n" or (char in ";|&" and not self._redirects()):
            self.at += 1
            self._end_word()
            self._end_line(char)
        elif char == "(" and self.word and re.fullmatch(r"\w+\+?=", self.word):
            self.at, self.word, self.in_array = self.at + 1, None, True
        elif char == ")" and self.in_array:
            self.at += 1
            self._end_word()
            self.in_array = False
            self.words, self.command = self.words + self.command, []
        elif char == "<" and (found := HERE_DOCUMENT.match(self.text, self.at)):
            self.at = found.end()
            self.documents.append(found[2])
        else:
            self.at += 1
            self.word = (self.word or "") + char

    def _redirects(self) -> bool:
        """`2>&1` and `&>` are one word."""
        return self.text[self.at] == "&" and (
            self.text[self.at - 1 : self.at] == ">" or self.text[self.at + 1 : self.at + 2] == ">"
        )

    def _escape(self) -> None:
        following = self.text[self.at + 1 : self.at + 3]
        if following[:1] == "\n" or following == "\r\n":
            self.at += 1 + len(following.partition("\n")[0]) + 1
        else:
            self.word = (self.word or "") + following[:1]
            self.at += 2

    def _quoted(self, quote: str) -> None:
        end = _closing(self.text, self.at, quote)
        if end is None:  # an apostrophe in prose
            self.word, self.at = (self.word or "") + quote, self.at + 1
            return
        inner = self.text[self.at + 1 : end]
        self.word = (self.word or "") + (inner if quote == "'" else fill(inner, self.variables))
        self.at = end + 1

    def _append_unquoted(self, value: str) -> None:
        """A shell splits what stands outside quotes."""
        if "$" in value or "`" in value:
            self.word = (self.word or "") + value
            return
        for position, part in enumerate(re.split(r"\s+", value)):
            if position:
                self._end_word()
            if part:
                self.word = (self.word or "") + part

    def _end_word(self) -> None:
        if self.word is not None:
            self.command.append(self.word)
        self.word = None

    def _end_line(self, char: str) -> None:
        if char == "\n":
            for end in self.documents:
                found = re.compile(rf"^\t*{end}$", re.MULTILINE).search(self.text, self.at)
                self.at = found.end() if found else len(self.text)
            self.documents = []
        if not self.in_array:
            self._end_command()

    def _end_command(self) -> None:
        self._end_word()
        words = self.command
        while words and words[0] in DECLARING:
            words = words[1:]
        assigned = [ASSIGNED.fullmatch(word) for word in words]
        if all(assigned):
            self.variables |= {found[1]: found[2] for found in assigned if found}
        else:
            self.words += words
        self.command = []


def fill(text: str, variables: dict[str, str]) -> str:
    """Text inside double quotes with its variables filled in."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("$", '"', "\\", "`", "\n"):
            out += "" if text[at + 1] == "\n" else text[at + 1]
            at += 2
        elif text[at] in "$`":
            raw, at = _expansion(text, at)
            out += expand(raw, variables)
        else:
            out += text[at]
            at += 1
    return out


def expand(raw: str, variables: dict[str, str]) -> str:
    """What `$x`, `${x:-y}` or `$((x * 2))` stands for; as it is written where only a shell could tell."""
    if raw.startswith("$((") and raw.endswith("))"):
        number = arithmetic(raw[3:-2], variables)
        return raw if number is None else str(number)
    if raw in ("$@", "$*") or re.fullmatch(r"\$\{(\w+\[[@*]\]|[@*])\}", raw):
        return ""
    inner = raw[2:-1] if raw.startswith("${") else raw[1:]
    if (name := NAME.fullmatch(inner)) or not raw.startswith("${"):
        return variables.get(inner, raw) if name else raw
    found = DEFAULT.fullmatch(inner)
    if found is None:
        return raw
    known = variables.get(found[1])
    if known is not None and (known or ":" not in found[2]):
        return known
    value = fill(_unquoted(found[3]), variables)
    if "=" in found[2]:
        variables[found[1]] = value
    return value


def _unquoted(text: str) -> str:
    """A default without its quotes."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _expansion(text: str, start: int) -> tuple[str, int]:
    """The `$...` or `` `...` `` that begins here, and where it ends."""
    if text[start] == "`":
        end = text.find("`", start + 1)
        end = len(text) if end < 0 else end + 1
        return text[start:end], end
    opened = text[start + 1 : start + 2]
    if opened and opened in "({":
        end = _bracket_end(text, start + 1, opened, ")" if opened == "(" else "}")
        return text[start:end], end
    name = NAME.match(text, start + 1)
    end = name.end() if name else min(len(text), start + (2 if opened and not opened.isspace() else 1))
    if not name and opened not in "@*#?$!-0123456789":
        end = start + 1
    return text[start:end], end


def _bracket_end(text: str, start: int, opened: str, closed: str) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opened) - (text[at] == closed)
        if not depth:
            return at + 1
    return len(text)


def _closing(text: str, start: int, quote: str) -> int | None:
    """Where the quotes opened at `start` are closed; those inside `${...}` and `$(...)` are not these."""
    at = start + 1
    while at < len(text):
        if text[at] == quote:
            return at
        if quote == '"' and text[at] == "\\":
            at += 2
        elif quote == '"' and text[at] == "$" and text[at + 1 : at + 2] in ("{", "("):
            _, at = _expansion(text, at)
        else:
            at += 1
    return None


def _find(text: str, what: str, start: int) -> int:
    found = text.find(what, start)
    return len(text) if found < 0 else found


def arithmetic(text: str, variables: Mapping[str, str]) -> int | None:
    """A shell's whole-number sum: `+ - * / %` and brackets over numbers and known variables; None for anything else."""
    tokens, at = [], 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append(found[1])
        at = found.end()
    try:
        value, rest = _sum(tokens, variables, 0)
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return None if rest else value


def _sum(tokens: list[str], variables: Mapping[str, str], depth: int) -> tuple[int, list[str]]:
    value, tokens = _product(tokens, variables, depth)
    while tokens and tokens[0] in "+-":
        right, rest = _product(tokens[1:], variables, depth)
        value, tokens = (value + right if tokens[0] == "+" else value - right), rest
    return value, tokens


def _product(tokens: list[str], variables: Mapping[str, str], depth: int) -> tuple[int, list[str]]:
    value, tokens = _factor(tokens, variables, depth)
    while tokens and tokens[0] in "*/%":
        right, rest = _factor(tokens[1:], variables, depth)
        if tokens[0] == "*":
            value = value * right
        else:  # a shell rounds towards zero
            quotient = abs(value) // abs(right) * (1 if (value < 0) == (right < 0) else -1)
            value = quotient if tokens[0] == "/" else value - quotient * right
        tokens = rest
    return value, tokens


def _factor(tokens: list[str], variables: Mapping[str, str], depth: int) -> tuple[int, list[str]]:
    token, rest = tokens[0], tokens[1:]
    if depth > MAX_DEPTH:
        raise ValueError("brackets without end")
    if token in "+-":
        value, rest = _factor(rest, variables, depth + 1)
        return (-value if token == "-" else value), rest
    if token == "(":
        value, rest = _sum(rest, variables, depth + 1)
        if rest[0] != ")":
            raise ValueError("a bracket is not closed")
        return value, rest[1:]
    return int(token if token.isdigit() else variables[_name(token, variables)]), rest


def _name(token: str, variables: Mapping[str, str]) -> str:
    name = token.strip("${}")
    if name not in variables:
        raise ValueError(f"{name} is not known")
    return name
