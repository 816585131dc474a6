"""Search: questions about made-up people, places and works that nobody can answer without looking them up.

`Where was the author of Amber Tolvin born?` takes two searches: the work names its author, the author's page names the
town. `hops` chooses one-hop questions, two-hop questions (the default), or both (0). The task also makes the corpus
that answers them, the same in every run; a retriever finds it under `task:search`. Scoring is an exact match of the
last `<answer>`, as in Search-R1.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any, ClassVar

from podium.data.tasks.base import Problem, Task
from podium.data.text import last_tag
from podium.errors import ConfigError

WORDS = 64
NUM_TOWNS, NUM_COUNTRIES = 400, 40
ONSETS = ["b", "br", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z"]
VOWELS = ["a", "e", "i", "o", "u", "ei", "ou"]
CODAS = ["l", "n", "r", "s", "th", "x", "m", "sk"]


@dataclass(frozen=True)
class Fact:
    """A page of the corpus: what it is about, what it says, and the one thing to learn from it."""

    title: str
    text: str
    answer: str

    def row(self, number: int) -> dict[str, str]:
        return {"id": str(number), "title": self.title, "text": self.text}


@dataclass(frozen=True)
class World:
    """Works have an author, people a birthplace, towns a country; facts by title."""

    works: tuple[Fact, ...]
    people: tuple[Fact, ...]
    towns: tuple[Fact, ...]

    @functools.cached_property
    def by_title(self) -> dict[str, Fact]:
        return {fact.title: fact for fact in (*self.works, *self.people, *self.towns)}


@functools.cache
def world() -> World:
    """The one world all questions are about."""
    rng = random.Random("podium search world 1")
    used: set[str] = set()
    given, family, first, second = (_words(rng, WORDS, used, ending) for ending in ("", "", "", ""))
    town_names = _words(rng, NUM_TOWNS, used, "ville")
    countries = _words(rng, NUM_COUNTRIES, used, "land")
    towns = [Fact(t, f"{t} is a town in {c}.", c) for t in town_names for c in [rng.choice(countries)]]
    names = [f"{a} {b}" for a in given for b in family]
    rng.shuffle(names)
    people = [Fact(n, f"{n} is a writer born in {t}.", t) for n in names for t in [rng.choice(town_names)]]
    titles = [f"{a} {b}" for a in first for b in second]
    rng.shuffle(titles)
    works = [Fact(t, f"{t} is a novel by {n}.", n) for t, n in zip(titles, names, strict=True)]
    return World(tuple(works), tuple(people), tuple(towns))


def _words(rng: random.Random, count: int, used: set[str], ending: str) -> list[str]:
    """Made-up names, no two alike."""
    words: list[str] = []
    while len(words) < count:
        syllables = rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        if not ending:
            syllables = rng.choice(ONSETS) + rng.choice(VOWELS) + syllables
        word = (syllables + ending).capitalize()
        if word not in used:
            used.add(word)
            words.append(word)
    return words


@dataclass(frozen=True)
class Search(Task):
    name: ClassVar[str] = "search"
    ability: ClassVar[str] = "search"

    hops: int = 2
    """Searches a question takes: 1, 2, or 0 for both kinds."""

    def __post_init__(self) -> None:
        if self.hops not in (0, 1, 2):
            raise ConfigError(f"task search: hops={self.hops} must be 1, 2, or 0 for both kinds")

    def draw(self, rng: random.Random) -> Problem:
        question, titles = self._question(rng, self.hops or rng.choice((1, 2)))
        answer = world().by_title[titles[-1]].answer
        return Problem(question, f"<answer> {answer} </answer>", {"target": [answer], "titles": titles}, question)

    def _question(self, rng: random.Random, hops: int) -> tuple[str, list[str]]:
        """The question, and the titles to look up one after the other."""
        work, person = rng.choice(world().works), rng.choice(world().people)
        if hops == 2:
            if rng.random() < 0.5:
                return f"Where was the author of {work.title} born?", [work.title, work.answer]
            return f"In which country was {person.title} born?", [person.title, person.answer]
        if rng.random() < 0.5:
            return f"Who wrote {work.title}?", [work.title]
        return f"Where was {person.title} born?", [person.title]

    def score(self, solution_str: str, ground_truth: Any) -> dict[str, float]:
        """1 when the last answer is the right name, whatever its case."""
        answer = last_tag(solution_str, "answer")
        right = answer is not None and answer.lower() in [str(target).lower() for target in ground_truth["target"]]
        return {"score": float(right), "answered": float(answer is not None)}

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> dict[str, float]:
        """Only what the model wrote counts: a page that it was shown may hold an answer too."""
        return self.score((extra_info or {}).get("written", solution_str), ground_truth)

    def corpus(self) -> list[dict[str, str]]:
        """Every page of the world."""
        return [fact.row(number) for number, fact in enumerate(world().by_title.values())]
