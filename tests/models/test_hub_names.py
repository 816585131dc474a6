"""A model by name when the hub does not answer: one error in seconds, or the copy that was downloaded before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from podium.errors import ModelError
from podium.models.hub import hub_fault
from podium.models.load import load_config, load_tokenizer, resolve_path

NAME = "nobody/nothing"


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No port listens where the hub should be, and the cache is empty."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    hub_fault.cache_clear()


@pytest.fixture
def downloaded(tmp_path: Path) -> None:
    """The hub's cache as a download of the name would leave it."""
    repo, commit = tmp_path / "cache" / f"models--{NAME.replace('/', '--')}", "c" * 40
    shutil.copytree(resolve_path("builtin:tiny"), repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)


@pytest.mark.parametrize("load", [load_config, load_tokenizer])
def test_a_hub_that_does_not_answer_is_one_clear_error_without_retries(
    load: type, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelError) as caught:
        load(NAME)
    for words in (f"{NAME!r} is not a local folder", "(http://127.0.0.1:9) cannot be reached", "HF_HUB_OFFLINE=1"):
        assert words in str(caught.value)
    assert "Retry" not in capfd.readouterr().err + caplog.text


def test_offline_on_purpose_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=rf"'{NAME}' is not a local folder.*HF_HUB_OFFLINE is set"):
        load_config(NAME)


@pytest.mark.usefixtures("downloaded")
def test_a_model_that_was_downloaded_before_is_used_without_the_hub(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert load_config(NAME).model_type == "qwen2"
    assert load_tokenizer(NAME).encode("1+1=")
    assert "Retry" not in capfd.readouterr().err + caplog.text
