"""The public data sets: from the columns of their files to ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from podium.data.prompts import PromptError
from podium.data.text import last_boxed

Row = dict[str, Any]

GSM8K_HINT = 'Think step by step and write the final number after "####".'
MATH_HINT = r"Think step by step and write the final answer within \boxed{}."
SEARCH_HINT = (
    "Answer the question. First reason inside <think> and </think>. When knowledge is missing, ask a search engine "
    "with <search> query </search>; what it finds comes back between <information> and </information>. "
    "Search as often as you need. Give the answer inside <answer> and </answer>, without explanations, "
    "for example <answer> Beijing </answer>. Question: "
)


def gsm8k(raw: Iterable[Row], split: str) -> Iterator[Row]:
    """`question` and `answer`, whose number stands behind ####."""
    for index, row in enumerate(raw):
        question, answer = _text(row, "question"), _text(row, "answer")
        truth = answer.rpartition("####")[2].strip().replace(",", "")
        extra = {"question": question, "answer": answer}
        yield make_row("openai/gsm8k", f"{question} {GSM8K_HINT}", "math", truth, split, index, extra)


def math(raw: Iterable[Row], split: str) -> Iterator[Row]:
    """`problem` and `solution` (the box in it is the answer) or `answer`; levels and types are kept."""
    for index, row in enumerate(raw):
        problem = _text(row, "problem")
        truth = row.get("answer") or last_boxed(str(row.get("solution", "")))
        if truth is None:
            raise PromptError("neither 'answer' nor a \\boxed{} in 'solution'")
        extra = {key: str(row[key]) for key in ("level", "type", "subject") if row.get(key) is not None}
        yield make_row("math", f"{problem} {MATH_HINT}", "math", str(truth), split, index, extra)


def nq_search(raw: Iterable[Row], split: str) -> Iterator[Row]:
    """`question` and `golden_answers` (or `answer`), for training with search."""
    for index, row in enumerate(raw):
        question = _text(row, "question").strip()
        question += "" if question.endswith("?") else "?"
        answers = row.get("golden_answers", row.get("answer"))
        if answers is None or not len(answers):
            raise PromptError("no 'golden_answers'")
        target = [answers] if isinstance(answers, str) else [str(answer) for answer in answers]
        source = str(row.get("data_source") or "nq")
        yield make_row(source, SEARCH_HINT + question, "fact-reasoning", {"target": target}, split, index, {})


def jsonl(raw: Iterable[Row], split: str) -> Iterator[Row]:
    """Rows of any shape a run can read, in verl's columns."""
    from podium.data.prompts import build_messages
    from podium.data.rows import read_row

    for index, given in enumerate(raw):
        row = read_row(given, "prompt", "jsonl")
        yield {
            "data_source": row.data_source,
            "prompt": build_messages(row.prompt),
            "ability": str(given.get("ability", "")),
            "reward_model": row.reward_model,
            "extra_info": {"split": split, "index": index, **row.extra_info},
            **{key: given[key] for key in ("images", "tools") if given.get(key)},
        }


def make_row(source: str, prompt: str, ability: str, truth: Any, split: str, index: int, extra: Row) -> Row:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, **extra},
    }


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"no text in {key!r}; its columns are {sorted(row)}")
    return value
