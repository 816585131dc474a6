"""Countdown: `make 14 from 3 9 2` is answered by `3+9+2`.

The response must be an expression with +, - and * (and parentheses) that uses every given number exactly once and has
the target as its value; more than one answer can be right. A small recursive parser reads it: model-written text is
never evaluated as code, and length and depth are bounded. Problems use the operators in `operators`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from podium.data.tasks.base import Problem, Task
from podium.errors import ConfigError

MAX_EXPRESSION_CHARACTERS = 120  # also bounds how deep parentheses can nest
MAX_NUMBER_DIGITS = 9
TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*()]))")


@dataclass(frozen=True)
class Countdown(Task):
    name: ClassVar[str] = "countdown"
    ability: ClassVar[str] = "math"

    numbers: int = 3
    largest: int = 20
    operators: str = "+-"

    def __post_init__(self) -> None:
        if not 2 <= self.numbers <= 8:
            raise ConfigError(f"task countdown: numbers={self.numbers} is outside 2 to 8")
        if self.largest < 1:
            raise ConfigError(f"task countdown: largest={self.largest} must be at least 1")
        if set(self.operators) - set("+-*") or not set(self.operators) & set("+*"):
            raise ConfigError(f"task countdown: operators={self.operators!r} may hold + - and *, and needs + or *")

    def draw(self, rng: random.Random) -> Problem:
        while True:
            signs = ["+", *rng.choices(self.operators, k=self.numbers - 1)]
            terms = [(sign, rng.randint(1, self.largest)) for sign in signs]
            answer = _write(terms)
            target, numbers = parse_expression(answer)
            if target > 0:
                break
        rng.shuffle(terms)
        shown = [number for _, number in terms]
        if "*" not in answer:
            # Sums commute: the answer keeps the order shown, additions first, so that a learner sees one pattern.
            answer = _write(sorted(terms, key=lambda term: term[0] == "-"))
        return Problem(
            question=f"make {target} from {' '.join(map(str, shown))}",
            answer=answer,
            ground_truth={"target": target, "numbers": shown},
            key=f"{target}|{sorted(numbers)}",
        )

    def score(self, solution_str: str, ground_truth: Any) -> dict[str, float]:
        """`valid`: an expression of exactly the given numbers; `score`: and its value is the target."""
        try:
            value, used = parse_expression(solution_str)
        except ValueError:
            return {"score": 0.0, "valid": 0.0}
        valid = sorted(used) == sorted(ground_truth["numbers"])
        return {"score": float(valid and value == ground_truth["target"]), "valid": float(valid)}


def _write(terms: list[tuple[str, int]]) -> str:
    """Signed numbers as an expression, without the sign of the first."""
    return "".join(f"{sign}{number}" for sign, number in terms)[1:]


def parse_expression(text: str) -> tuple[int, list[int]]:
    """The value of an expression of natural numbers, + - * and parentheses, and the numbers in it; else ValueError."""
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise ValueError("expression too long")
    parser = _Parser(_tokens(text.strip()))
    value = parser.sum()
    if parser.rest:
        raise ValueError(f"unexpected {parser.rest[-1]!r}")
    return value, parser.numbers


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None or len(match[1] or "") > MAX_NUMBER_DIGITS:
            raise ValueError(f"cannot read {text[at : at + 10]!r}")
        tokens.append(match[1] or match[2])
        at = match.end()
    return tokens


class _Parser:
    """Recursive descent: a sum is products with + and -, a product atoms with *, an atom a number or (sum)."""

    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens[::-1]
        self.numbers: list[int] = []

    def sum(self) -> int:
        value = self.product()
        while self.rest and self.rest[-1] in "+-":
            sign = 1 if self.rest.pop() == "+" else -1
            value += sign * self.product()
        return value

    def product(self) -> int:
        value = self.atom()
        while self.rest and self.rest[-1] == "*":
            self.rest.pop()
            value *= self.atom()
        return value

    def atom(self) -> int:
        token = self.rest.pop() if self.rest else "the end"
        if token == "(":
            value = self.sum()
            if not self.rest or self.rest.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not token.isdigit():
            raise ValueError(f"a number was expected, found {token!r}")
        self.numbers.append(int(token))
        return int(token)
