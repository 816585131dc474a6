"""Checks before a run: settings, data, reward, model, memory, cluster. Nothing is trained and no worker starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from podium.checks.findings import Finding, Findings, note, ok, problem
from podium.config import check_config, config_notes, load_config
from podium.config.schema import Config
from podium.errors import ConfigError, PodiumError

__all__ = ["Finding", "run_checks"]

SETTING_FIX = "correct it in the recipe or on the command line"


def run_checks(recipe: str | None, overrides: Sequence[str], gpu_memory_gb: float | None = None) -> Iterator[Finding]:
    """Everything that can be known beforehand. `gpu_memory_gb`: for a GPU that is not in this machine."""
    try:
        config = load_config(recipe, overrides)
    except ConfigError as error:
        yield from _settings_problems(error)
        return
    try:
        check_config(config)
    except ConfigError as error:
        yield from _settings_problems(error)
    else:
        yield ok("settings", "known, in range, and they fit together")
    config, found = _settled(config)
    yield from found
    for text in config_notes(config):
        yield note("settings", text)
    yield from _check_parts(config, gpu_memory_gb)


def _settled(config: Config) -> tuple[Config, list[Finding]]:
    """With what the user's own estimator asks for."""
    if ":" not in config.algorithm.adv_estimator:
        return config, []
    from podium.trainer.requirements import settle_critic

    try:
        return settle_critic(config), []
    except ConfigError as error:
        return config, list(_settings_problems(error))
    except Exception as error:  # noqa: BLE001  the user's file may raise anything when it is imported
        said = f"{config.algorithm.adv_estimator} cannot be imported: {type(error).__name__}: {error}"
        return config, [problem("settings", said, "repair the file that algorithm.adv_estimator names")]


def _settings_problems(error: ConfigError) -> Findings:
    """One finding per problem; each of them names its own fix."""
    first, *others = str(error).splitlines()
    for line in others or [first]:
        yield problem("settings", line.removeprefix("- "), SETTING_FIX)


def _check_parts(config: Config, gpu_memory_gb: float | None) -> Findings:
    from podium.checks.cluster import check_folder, check_ports, check_room, check_versions
    from podium.checks.data import check_data
    from podium.checks.environment import check_agents, check_engine
    from podium.checks.memory import check_memory, read_shape
    from podium.checks.model import read_model
    from podium.checks.reward import check_reward
    from podium.data.dataset import RLHFDataset
    from podium.models.load import load_processor

    yield from check_versions()
    yield from check_engine(config)
    shape, tokenizer, found = read_model(config)
    yield from found
    if tokenizer is not None:
        found = list(check_data(config, tokenizer))
        yield from found
        if not any(finding.level == "problem" for finding in found):
            model = config.actor_rollout_ref.model
            processor = load_processor(model.path, model.trust_remote_code)
            dataset = RLHFDataset(config.data.train_files, tokenizer, config.data, "train", processor)
            yield from check_reward(config, dataset)
        yield from check_agents(config, tokenizer)
    parameters_gb = 0.0
    if shape is not None:
        sizes = read_shape(shape, config.actor_rollout_ref.model.trust_remote_code)
        parameters_gb = sizes.parameters / (1 << 30)
        yield from check_memory(config, sizes, *_device(config, gpu_memory_gb))
    yield from check_room(config)
    yield from check_ports()
    yield from check_folder(config, parameters_gb)


def _device(config: Config, gpu_memory_gb: float | None) -> tuple[bool, float, str]:
    """(is it a GPU, its GB, its name) of a worker's device."""
    import torch

    if gpu_memory_gb is not None:
        return True, gpu_memory_gb, f"a GPU of {gpu_memory_gb:g} GB"
    if config.trainer.device != "cpu" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return True, properties.total_memory / (1 << 30), properties.name
    return False, _host_memory_gb() / max(1, config.trainer.n_gpus_per_node), "this machine's share per worker"


def _host_memory_gb() -> float:
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    except (ValueError, OSError) as error:
        raise PodiumError(f"the memory of this machine is not known: {error}") from error
