from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from podium.algorithms import AdvantageEstimator, get_adv_estimator_fn, register_adv_est
from podium.algorithms.advantages import registry
from podium.config.schema import AlgorithmConfig
from podium.errors import ConfigError

REWARDS, MASK = torch.tensor([[0.0, 1.0], [0.0, 3.0]]), torch.ones(2, 2)
OWN = """
def double(token_level_rewards, response_mask, values, gamma, scale=2.0):
    assert gamma == 0.5
    return token_level_rewards * scale + values, values
"""


@pytest.fixture(autouse=True)
def _restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def test_every_estimator_of_the_enum_is_registered_and_documented() -> None:
    for name in AdvantageEstimator:
        entry = get_adv_estimator_fn(name)
        assert entry.name == name.value
        assert entry.__doc__ and "arXiv:" in entry.__doc__


def test_an_estimator_declares_what_it_needs() -> None:
    assert {n for n in AdvantageEstimator if get_adv_estimator_fn(n).needs_values} == {"gae"}
    assert {n for n in AdvantageEstimator if not get_adv_estimator_fn(n).needs_group} == {
        "gae",
        "reinforce_plus_plus",
        "remax",
    }
    assert {n for n in AdvantageEstimator if get_adv_estimator_fn(n).needs_greedy_baseline} == {"remax"}
    assert {n for n in AdvantageEstimator if get_adv_estimator_fn(n).needs_reward_parts} == {"gdpo"}
    token_baselines = {"optimal_token_baseline", "tir_optimal_token_baseline"}
    assert {n for n in AdvantageEstimator if get_adv_estimator_fn(n).needs_sum_pi_squared} == token_baselines
    assert {n for n in AdvantageEstimator if get_adv_estimator_fn(n).needs_old_log_probs} == token_baselines


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'gae' needs values .*critic\.enable"):
        get_adv_estimator_fn("gae")(REWARDS, MASK)


def test_settings_come_from_the_config_unless_given_by_name() -> None:
    grpo, index = get_adv_estimator_fn("grpo"), torch.tensor([0, 0])
    plain = AlgorithmConfig(norm_adv_by_std_in_grpo=False)
    assert grpo(REWARDS, MASK, index=index, config=plain)[0][:, 0].tolist() == [-1.0, 1.0]
    given = grpo(REWARDS, MASK, index=index, config=plain, norm_adv_by_std_in_grpo=True)[0]
    assert given[:, 0].tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_columns_that_an_estimator_does_not_take_are_left_aside() -> None:
    out, _ = get_adv_estimator_fn("rloo")(REWARDS, MASK, index=torch.tensor([0, 0]), values=MASK, entropys=MASK)
    assert out[:, 0].tolist() == [-2.0, 2.0]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        get_adv_estimator_fn("grpoo")


@pytest.mark.parametrize("written", ["{folder}/own_estimators.py:double", "own_estimators:double"])
def test_an_estimator_may_live_in_the_users_own_file(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_estimators.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    entry = get_adv_estimator_fn(written.format(folder=tmp_path))
    assert entry.needs_values and not entry.needs_group
    advantages, _ = entry(REWARDS, MASK, values=MASK, gamma=0.5, index=[0, 1], old_log_probs=MASK)
    assert advantages.tolist() == [[1.0, 3.0], [1.0, 7.0]]


def test_an_installed_module_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "estimators_on_the_path.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_adv_estimator_fn("estimators_on_the_path:double").needs_values
    sys.modules.pop("estimators_on_the_path")


def test_a_file_that_registers_a_name_keeps_its_declared_needs(tmp_path: Path) -> None:
    path = tmp_path / "registers.py"
    path.write_text(
        "from podium.algorithms import register_adv_est\n"
        "@register_adv_est('mine', needs=['values'])\n"
        "def mine(token_level_rewards, response_mask, **columns):\n"
        "    return columns['values'], columns['values']\n"
    )
    assert get_adv_estimator_fn(f"{path}:mine").needs_values
    assert get_adv_estimator_fn("mine").needs_values


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:f", "no module 'nowhere_at_all'"),
        ("nowhere/at/all.py:f", "there is no file"),
        ("podium.algorithms.kl:kl_penalti", "did you mean 'kl_penalty'"),
    ],
)
def test_what_cannot_be_found_is_said(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_adv_estimator_fn(name)


def test_an_import_error_inside_the_users_module_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imports_nothing_real.py").write_text("import surely_not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed_anywhere"):
        get_adv_estimator_fn("imports_nothing_real:f")


def test_a_name_cannot_be_taken_twice() -> None:
    with pytest.raises(ConfigError, match="already"):

        @register_adv_est("grpo")
        def another(token_level_rewards, response_mask):
            return token_level_rewards, token_level_rewards
