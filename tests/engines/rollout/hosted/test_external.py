"""What is said about a missing or unfit vLLM or SGLang, and about arguments they do not have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from podium.engines.rollout.external import PACKAGES, check_package, end_tokens, make_outline
from podium.engines.rollout.host.arguments import merged
from podium.errors import ConfigError, RolloutError
from podium.models.load import load_config, load_tokenizer, resolve_path


def python_with(folder: Path, version: str) -> str:
    """A `python` whose environment says it has that version."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\necho {version}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_engine_is_one_sentence_with_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(RolloutError) as caught:
        check_package(name, python_with(tmp_path, ""))
    assert f"needs {PACKAGES[name].needed}" in str(caught.value) and "\n" not in str(caught.value)
    assert f"-m pip install '{PACKAGES[name].needed}'" in str(caught.value)
    assert f"make env-{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "fits"), [("0.25.1", False), ("0.26.0", True), ("0.32.0+cpu", True), ("0.33", False)]
)
def test_versions_outside_the_tested_range_are_named(version: str, fits: bool, tmp_path: Path) -> None:
    if fits:
        check_package("vllm", python_with(tmp_path, version))
        return
    with pytest.raises(RolloutError, match=f"has {version}"):
        check_package("vllm", python_with(tmp_path, version))


def test_a_python_that_is_not_there_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"rollout.python=/no/python does not exist; `make env-sglang`"):
        check_package("sglang", "/no/python")


def test_this_environment_has_no_vllm_and_says_so() -> None:
    with pytest.raises(RolloutError, match=f"{sys.executable} has none"):
        check_package("vllm", "")


def test_arguments_are_checked_by_name() -> None:
    known, ours = ["block_size", "dtype", "seed"], {"dtype": "float32", "newer_than_this_version": 1}
    assert merged("vLLM", known, ours, {"seed": 0}, {"block_size": 16}, {"dtype": "model.dtype"}) == {
        "dtype": "float32",
        "seed": 0,
        "block_size": 16,
    }
    with pytest.raises(
        ValueError, match=r"engine_kwargs.blok_size is not an argument of vLLM; did you mean block_size"
    ):
        merged("vLLM", known, ours, {}, {"blok_size": 16}, {})
    with pytest.raises(ValueError, match=r"engine_kwargs.dtype is Podium's to set; use model.dtype"):
        merged("vLLM", known, ours, {}, {"dtype": "half"}, {"dtype": "model.dtype"})


def test_the_outline_of_a_model_has_its_tensors_and_knows_which_are_tied() -> None:
    outline = make_outline(load_config("builtin:tiny"), False)
    assert outline.shapes["model.embed_tokens.weight"] == (264, 128)
    assert outline.tensor_of["lm_head.weight"] == outline.tensor_of["model.embed_tokens.weight"]
    folder = resolve_path("builtin:tiny")
    assert end_tokens(folder, load_config("builtin:tiny"), load_tokenizer("builtin:tiny")) == (2,)
