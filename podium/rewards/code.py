"""Code by unit tests: the last Python block of a response, run in the sandbox against the row's tests.

The ground truth is `{"inputs": [...], "outputs": [...]}` (standard input and the output expected for it; also as JSON
text), or test code: a string, or a list of `assert` lines, run after the program. The score is 1 when all tests pass;
with `continuous`, the share that passes. Output is compared line by line without trailing spaces.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from podium.rewards.sandbox import SandboxLimits, run_python

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    continuous: bool = False,
    test_timeout_s: float = 5.0,
) -> dict[str, Any]:
    program = extract_code(solution_str)
    if program is None:
        return {"score": 0.0, "acc": False, "passed": 0.0}
    limits = SandboxLimits(wall_s=test_timeout_s, cpu_s=max(1, round(test_timeout_s)))
    results = []
    for test in read_tests(ground_truth):
        results.append(passes(program, test, limits))
        if not results[-1] and not continuous:
            break
    share = sum(results) / len(read_tests(ground_truth))
    return {"score": share if continuous else float(share == 1.0), "acc": share == 1.0, "passed": share}


def extract_code(text: str) -> str | None:
    """The last fenced block."""
    blocks = BLOCK.findall(text)
    return str(blocks[-1]) if blocks else None


def read_tests(ground_truth: Any) -> list[tuple[str, str] | str]:
    """Each test: (input, expected output), or code that raises when the program is wrong."""
    truth = ground_truth
    if isinstance(truth, str):
        try:
            truth = json.loads(truth)
        except ValueError:
            return [ground_truth]
    if isinstance(truth, Mapping) and "inputs" in truth and "outputs" in truth:
        pairs = zip(truth["inputs"], truth["outputs"], strict=True)
        tests: list[tuple[str, str] | str] = [(_text(given), _text(wanted)) for given, wanted in pairs]
    elif isinstance(truth, list) and all(isinstance(line, str) for line in truth):
        tests = list(truth)
    else:
        raise ValueError("the ground truth of a code row must be {inputs, outputs}, test code, or a list of asserts")
    if not tests:
        raise ValueError("the row has no tests")
    return tests


def passes(program: str, test: tuple[str, str] | str, limits: SandboxLimits) -> bool:
    if isinstance(test, str):
        done = secrets.token_hex(8)  # only a program that comes to the end of its tests writes it: no early sys.exit(0)
        result = run_python(f"{program}\n\n{test}\n\nprint()\nprint({done!r})\n", limits=limits)
        return result.ok and result.stdout.endswith(f"\n{done}\n")
    given, wanted = test
    result = run_python(program, given, limits)
    return result.ok and _lines(result.stdout) == _lines(wanted)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
