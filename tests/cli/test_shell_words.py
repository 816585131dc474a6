"""Scripts are read as a shell would read them, and nothing in them is run."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.cli.shell_words import arithmetic, read_words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("x=$((1024 * 2))\nrun a=$x", ["run", "a=2048"]),
        ("a=2\nb=3\nrun k=$((a + b)) l=$((($a+b)/2))", ["run", "k=5", "l=2"]),
        ('M=${M:-"${HOME}/m"}\nrun p=${M}/x', ["run", "p=~/m/x"]),
        ('A=one\nB="${B:-"${A}/${C:-two}"}"\nrun $B', ["run", "one/two"]),
        ("run ${X:=5} $X", ["run", "5", "5"]),
        ("export A=1 B='two words'\nrun a=$A b=\"$B\" c=$B", ["run", "a=1", "b=two words", "c=two", "words"]),
        ("run a='$x' b=\\$x c=\"\\$x\"", ["run", "a=$x", "b=$x", "c=$x"]),
        ("run a=1 \\\n  b=2 # c=3\nrun d=4", ["run", "a=1", "b=2", "run", "d=4"]),
        ("run a=1 \\\n# x.off=2 \\\nx.b=3 x.c=4", ["run", "a=1", "x.b=3", "x.c=4"]),
        ('ARGS=(\n  a=1  # first\n  \'b=2\'\n)\nrun "${ARGS[@]}" "$@" $@', ["a=1", "b=2", "run", "", ""]),
        ("x=1; y=2; run $x$y 2>&1 | tee log", ["run", "12", "2>&1", "tee", "log"]),
        ("cat <<EOF\nit's a=1\nEOF\nrun b=2", ["cat", "run", "b=2"]),
        ("run trainer.logger=['console','wandb']", ["run", "trainer.logger=[console,wandb]"]),
    ],
)
def test_words_are_what_a_shell_makes_of_them(script: str, words: list[str]) -> None:
    assert read_words(script) == words


@pytest.mark.parametrize("unknown", ["$(date +%s)", "$X", "${X}", "$((2 ** 3))", "$((X + 1))", "$((1 / 0))", "`pwd`"])
def test_what_only_a_shell_knows_stays_as_it_is_written(unknown: str) -> None:
    assert read_words(f"run a={unknown}/b") == ["run", f"a={unknown}/b"]


@pytest.mark.parametrize(
    "text", ["", "1 +", "(1", "1)", "1 2", "a.b", "__import__", "1;2", "(" * 200 + "1" + ")" * 200]
)
def test_what_is_no_sum_has_no_value(text: str) -> None:
    assert arithmetic(text, {"a": "1"}) is None


def sums() -> st.SearchStrategy[str]:
    numbers = st.integers(0, 50).map(str) | st.sampled_from(["a", "b", "$a"])
    return st.recursive(
        numbers,
        lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda parts: f"({' '.join(parts)})"),
        max_leaves=6,
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@settings(max_examples=4, deadline=None)
@given(st.lists(sums(), min_size=20, max_size=20))
def test_sums_are_those_of_bash(texts: list[str]) -> None:
    known = {"a": "7", "b": "-3"}
    ours = [arithmetic(text, known) for text in texts]
    lines = "\n".join(f"(echo $(({text}))) 2>/dev/null || echo None" for text in texts)
    said = subprocess.run(["bash", "-c", f"a=7; b=-3\n{lines}"], capture_output=True, text=True, timeout=30, check=True)
    assert [str(number) for number in ours] == said.stdout.split()
