"""Recipes and `a.b=c` words become a typed config; mistakes are named with their place and the nearest right name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.config import Config, load_config, resolve, save_config
from podium.config.load import recipe_names
from podium.errors import ConfigError


def recipe(tmp_path: Path, text: str, name: str = "recipe.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_without_a_recipe_the_config_is_the_resolved_defaults() -> None:
    assert load_config() == resolve(Config())


def test_words_win_over_the_recipe_and_the_recipe_over_the_defaults(tmp_path: Path) -> None:
    path = recipe(tmp_path, "trainer:\n  seed: 5\n  nnodes: 3\n")
    config = load_config(path, ["trainer.seed=9"])
    assert (config.trainer.seed, config.trainer.nnodes, config.trainer.n_gpus_per_node) == (9, 3, 1)


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "0.00001", "1.0e-5", ".1e-4", "10.e-6"])
def test_every_way_to_write_a_float_is_a_float(text: str, tmp_path: Path) -> None:
    from_word = load_config(None, [f"actor_rollout_ref.actor.optim.lr={text}"])
    from_file = load_config(recipe(tmp_path, f"actor_rollout_ref: {{actor: {{optim: {{lr: {text}}}}}}}"))
    assert from_word.actor_rollout_ref.actor.optim.lr == from_file.actor_rollout_ref.actor.optim.lr == 1e-5


def test_a_whole_number_in_scientific_form_is_an_int() -> None:
    steps = load_config(None, ["trainer.total_training_steps=1e3"]).trainer.total_training_steps
    assert steps == 1000
    assert isinstance(steps, int)


@pytest.mark.parametrize("name", ["1e5", "007", "on", "2024-01-01", "12:30", "1_000", "true", "0x1f"])
def test_a_text_field_keeps_the_text_that_was_written(name: str, tmp_path: Path) -> None:
    assert load_config(None, [f"trainer.experiment_name={name}"]).trainer.experiment_name == name
    from_file = load_config(recipe(tmp_path, f"trainer:\n  experiment_name: {name}\n"))
    assert from_file.trainer.experiment_name == name


def test_off_is_a_mode_and_not_the_boolean_false(tmp_path: Path) -> None:
    path = recipe(tmp_path, "algorithm:\n  rollout_correction:\n    mode: off\n")
    assert load_config(path).algorithm.rollout_correction.mode == "off"


def test_a_single_value_is_a_list_of_one() -> None:
    config = load_config(None, ["data.train_files=task:reverse", "data.val_files=[a.parquet, b.parquet]"])
    assert config.data.train_files == ["task:reverse"]
    assert config.data.val_files == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("word", ["null", "None", "~", ""])
def test_null_can_be_written_in_every_usual_way(word: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, "data:\n  system_prompt: hello\n  train_data_num: 100\n")
    config = load_config(path, [f"data.system_prompt={word}", f"data.train_data_num={word}"])
    assert config.data.system_prompt is None
    assert config.data.train_data_num is None


def test_free_keys_take_names_of_the_users_own_and_merge(tmp_path: Path) -> None:
    path = recipe(tmp_path, "extra:\n  a.b: {x: 1}\n  c: {d: 1e-3}\nalgorithm:\n  reward_weights: {format.score: 1}\n")
    config = load_config(path, ["extra.c.e=[1, two]", "algorithm.reward_weights.accuracy=0.5"])
    assert config.extra == {"a.b": {"x": 1}, "c": {"d": 1e-3, "e": [1, "two"]}}
    assert config.algorithm.reward_weights == {"format.score": 1.0, "accuracy": 0.5}


def test_dotted_keys_and_sections_mean_the_same_in_a_recipe(tmp_path: Path) -> None:
    dotted = load_config(recipe(tmp_path, "trainer.seed: 4\nalgorithm:\n  kl_ctrl.type: adaptive\n"))
    nested = load_config(recipe(tmp_path, "trainer: {seed: 4}\nalgorithm: {kl_ctrl: {type: adaptive}}\n"))
    assert dotted == nested != load_config()


def test_an_empty_recipe_and_empty_sections_change_nothing(tmp_path: Path) -> None:
    named = load_config(None, ["trainer.experiment_name=recipe"])  # after the file
    assert load_config(recipe(tmp_path, "")) == load_config(recipe(tmp_path, "data:\ntrainer: {}\n")) == named


def test_interpolation_refers_to_other_settings(tmp_path: Path) -> None:
    path = recipe(
        tmp_path, "trainer:\n  seed: 11\n  critic_warmup: ${trainer.seed}\n  experiment_name: s-${trainer.seed}\n"
    )
    config = load_config(path)
    assert (config.trainer.critic_warmup, config.trainer.experiment_name) == (11, "s-11")


def test_a_recipe_that_does_not_name_its_runs_gives_them_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("data: {train_batch_size: 8}\n")
    assert load_config(tmp_path / "my.yaml").trainer.default_local_dir == "runs/podium/my"
    assert load_config(tmp_path / "my.yaml", ["trainer.experiment_name=other"]).trainer.experiment_name == "other"
    (tmp_path / "my.yaml").write_text("trainer: {experiment_name: named}\n")
    assert load_config(tmp_path / "my.yaml").trainer.experiment_name == "named"


@pytest.mark.parametrize("word", ["~trainer.seed", "~nobody-of-that-name/my.yaml", "nowhere"])
def test_a_recipe_that_is_not_there_is_told_with_the_place_that_was_searched(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"no recipe '{word}'.*{tmp_path}/recipes"):
        load_config(word)


def test_val_freq_is_a_second_name_of_test_freq(tmp_path: Path) -> None:
    assert load_config(None, ["trainer.val_freq=50"]).trainer.test_freq == 50
    path = recipe(tmp_path, "trainer:\n  val_freq: 50\n  test_freq: 10\n")
    with pytest.raises(ConfigError, match=r"line 3: trainer.test_freq is set twice.*line 2"):
        load_config(path)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr=1e-5", "actor_rollout_ref.actor.optim.lr"),
        ("rollout.n=8", "actor_rollout_ref.rollout.n"),
        ("trainer.test_frq=5", "trainer.test_freq"),
        ("data.train_batch_sise=5", "data.train_batch_size"),
        ("total_steps=5", "trainer.total_training_steps"),
        ("learning_rate=1e-5", "actor_rollout_ref.actor.optim.lr"),
        ("+trainer.sede=1", "trainer.seed"),
        ("++lr=1e-5", "actor_rollout_ref.actor.optim.lr"),
        ("actor_rollout_ref.actor.ppo_micro_batch_sise=4", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [word])
    assert f"did you mean {meant}" in str(caught.value)
    assert f"unknown key {word.partition('=')[0].lstrip('+')!r}" in str(caught.value)


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_hydras_prefix_for_a_new_key_changes_nothing(prefix: str) -> None:
    config = load_config(None, [f"{prefix}trainer.seed=7", f"{prefix}data={{train_batch_size: 8}}"])
    assert (config.trainer.seed, config.data.train_batch_size) == (7, 8)


def test_an_unknown_key_like_no_other_lists_what_its_section_has() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key 'reward.xyzzy'; reward has custom_reward_function, functions, "
    ):
        load_config(None, ["reward.xyzzy=1"])


def test_an_error_in_a_recipe_names_file_and_line(tmp_path: Path) -> None:
    path = recipe(tmp_path, "trainer:\n  seed: 1\n  sede: 2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert f"{path} line 3: unknown key 'trainer.sede'; did you mean trainer.seed?" in str(caught.value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.seed=x", "trainer.seed cannot be 'x'; it must be a whole number"),
        ("trainer.seed=1.5", "trainer.seed cannot be '1.5'; it must be a whole number"),
        ("trainer.seed=true", "it must be a whole number"),
        ("trainer.seed=null", "trainer.seed cannot be null; it must be a whole number"),
        ("data.shuffle=2", "data.shuffle cannot be '2'; it must be true or false"),
        ("critic.enable=perhaps", "it must be true or false, or null"),
        ("algorithm.gamma=high", "it must be a number"),
        ("data.overlong_prompts=cut", "it must be one of error, drop, truncate_left"),
        ("trainer.logger=[console,paper]", "it must be a list, each item one of console"),
        ("critic.optim.betas=[0.9,x]", "it must be a list, each item a number"),
        ("data=3", "data is a section and cannot be '3'; set data.<one of"),
        ("extra=3", "extra is a mapping, each value anything"),
        ("algorithm.reward_weights.a=x", "algorithm.reward_weights is a mapping, each value a number"),
        ("trainer.seed", "'trainer.seed' is not a setting; write key=value"),
        ("trainer.seed=[1", "is not valid YAML"),
        ("trainer.experiment_name=${nowhere.at.all}", "cannot be resolved"),
    ],
)
def test_a_wrong_value_says_what_was_given_and_what_is_allowed(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [word])
    assert message in str(caught.value)


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    path = recipe(tmp_path, "trainer:\n  sed: 1\n  nnodes: many\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["data.shufle=true"])
    text = str(caught.value)
    assert text.startswith("3 settings")
    assert all(part in text for part in ("line 2", "line 3", "the command line", "data.shuffle", "a whole number"))


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "just words\n", "a: [1\n", "trainer: {seed: 1, seed: 2}\n", "? [a]\n: 1\n"]
)
def test_a_recipe_that_is_no_recipe_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recipe.yaml"):
        load_config(recipe(tmp_path, text))


def test_a_recipe_may_not_run_code(tmp_path: Path) -> None:
    path = recipe(tmp_path, "extra:\n  x: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


def test_a_bare_name_is_found_in_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    recipe(tmp_path / "recipes", "trainer: {seed: 77}\n", "grpo_small.yaml")
    assert load_config("grpo_small").trainer.seed == load_config("grpo_small.yaml").trainer.seed == 77
    with pytest.raises(ConfigError, match="did you mean grpo_small"):
        load_config("grpo_smal")
    with pytest.raises(ConfigError, match=r"no recipe 'elsewhere/grpo_small\.yaml'"):
        load_config("elsewhere/grpo_small.yaml")


def test_podiums_own_recipes_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = sorted(path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    monkeypatch.chdir(tmp_path)
    assert "quickstart" in ours and recipe_names() == ours
    for word in ("search", "search.yaml", "recipes/search.yaml"):
        assert load_config(word).do_search
    recipe(tmp_path, "trainer: {seed: 77}\n", "search.yaml")
    assert load_config("search.yaml").trainer.seed == 77, "a file here comes first"


def test_a_saved_config_reads_back_equal(tmp_path: Path) -> None:
    words = [
        "algorithm.adv_estimator=gae",
        "actor_rollout_ref.actor.optim.lr=3e-7",
        "trainer.experiment_name=1e5",
        "data.system_prompt='Answer: ${not} resolved \\ \\\\${x}, ''quoted''\n and on'",
        "extra={a: 'off', b: ['None', '1e5', null, 1.5], c: {d: '007'}}",
        "algorithm.reward_weights={x.y: 2}",
        "trainer.n_gpus_per_node=2",
        "trainer.micro_batch_size=4",
    ]
    config = load_config(None, [word.replace("${", "\\${") if word.startswith("data") else word for word in words])
    assert config.data.system_prompt is not None
    assert "${not}" in config.data.system_prompt
    save_config(config, tmp_path / "run" / "config.yaml")
    assert load_config(tmp_path / "run" / "config.yaml") == config
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: text != "???")
_EXTRA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.$é: ", min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=15, deadline=None)
@given(text=_TEXT, extra=st.dictionaries(st.text("xyz.", min_size=1, max_size=4), _EXTRA, max_size=3))
def test_any_text_and_any_free_setting_survive_saving(text: str, extra: dict[str, Any], tmp_path_factory: Any) -> None:
    config = load_config()
    config.data.system_prompt, config.extra = text, extra
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    save_config(config, path)
    assert load_config(path) == config


def test_a_saved_recipe_under_another_name_has_a_run_folder_of_its_own(tmp_path: Path) -> None:
    save_config(load_config(None, ["trainer.experiment_name=first"]), tmp_path / "config.yaml")
    second = load_config(tmp_path / "config.yaml", ["trainer.experiment_name=second"])
    assert second.trainer.default_local_dir == "runs/podium/second"
    assert second.trainer.rollout_data_dir == "runs/podium/second/rollouts"
