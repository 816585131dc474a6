"""The arithmetic of a run: what the settings amount to in prompts, samples, optimizer steps, tokens and workers.

A plan is computed from a resolved config and, where it is known, the number of training rows. It starts nothing and
imports neither torch nor ray.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podium.config.resolve import num_workers
from podium.config.schema import Config

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Plan:
    """Counts are for one training step unless the name says otherwise; null is what only the data can tell."""

    estimator: str
    model: str
    train_files: tuple[str, ...]
    run_folder: str
    roles: tuple[str, ...]
    runtime: str
    device: str
    num_nodes: int
    num_workers: int
    max_staleness: int
    num_prompts: int
    samples_per_prompt: int
    num_samples: int
    mini_batch_prompts: int
    mini_batches_per_epoch: int
    ppo_epochs: int
    optimizer_steps: int
    critic_optimizer_steps: int
    """0 without a critic."""
    max_sequence_tokens: int
    max_tokens: int
    train_rows: int | None
    steps_per_epoch: int | None
    total_steps: int | None
    total_optimizer_steps: int | None
    """The actor's; steps that only warm up the critic have none."""
    total_critic_optimizer_steps: int | None

    @property
    def strictly_on_policy(self) -> bool:
        """One update per batch, on samples of the very weights it moves."""
        return self.optimizer_steps == 1 and self.max_staleness == 0


def make_plan(config: Config, num_train_rows: int | None) -> Plan:
    """The plan of a resolved config. `num_train_rows` counts the rows at hand; incomplete last batches are dropped."""
    data, actor, critic, trainer = config.data, config.actor_rollout_ref.actor, config.critic, config.trainer
    assert actor.ppo_mini_batch_size and critic.ppo_mini_batch_size and critic.ppo_epochs, "the config is not resolved"
    rows = num_train_rows
    if rows is not None and data.train_data_num is not None:
        rows = min(rows, data.train_data_num)
    steps_per_epoch = None if rows is None else rows // data.train_batch_size
    total = trainer.total_training_steps
    if total is None and steps_per_epoch is not None:
        total = steps_per_epoch * trainer.total_epochs
    mini_batches = max(1, data.train_batch_size // actor.ppo_mini_batch_size)
    critic_steps = max(1, data.train_batch_size // critic.ppo_mini_batch_size) * critic.ppo_epochs
    critic_steps = critic_steps if critic.enable else 0
    actor_steps = mini_batches * actor.ppo_epochs
    samples = data.train_batch_size * config.actor_rollout_ref.rollout.n
    longest = data.max_prompt_length + data.max_response_length
    return Plan(
        estimator=config.algorithm.adv_estimator,
        model=config.actor_rollout_ref.model.path,
        train_files=tuple(data.train_files),
        run_folder=trainer.default_local_dir,
        roles=_roles(config),
        runtime=trainer.runtime,
        device=trainer.device,
        num_nodes=trainer.nnodes,
        num_workers=num_workers(config),
        max_staleness=trainer.max_staleness,
        num_prompts=data.train_batch_size,
        samples_per_prompt=config.actor_rollout_ref.rollout.n,
        num_samples=samples,
        mini_batch_prompts=actor.ppo_mini_batch_size,
        mini_batches_per_epoch=mini_batches,
        ppo_epochs=actor.ppo_epochs,
        optimizer_steps=actor_steps,
        critic_optimizer_steps=critic_steps,
        max_sequence_tokens=longest,
        max_tokens=samples * longest,
        train_rows=rows,
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
        total_optimizer_steps=None if total is None else max(0, total - trainer.critic_warmup) * actor_steps,
        total_critic_optimizer_steps=None if total is None else total * critic_steps,
    )


def _roles(config: Config) -> tuple[str, ...]:
    algorithm = config.algorithm
    reference = (
        config.actor_rollout_ref.actor.use_kl_loss
        or algorithm.use_kl_in_reward
        or algorithm.ref_quality_score.enable
        or algorithm.repr_align.enable
    )
    return ("actor", "rollout", *(("reference",) if reference else ()), *(("critic",) if config.critic.enable else ()))


def render(plan: Plan) -> Table:
    """The plan as a table of name, number and how the number comes about."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Plan", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="cyan")
    table.add_column(style="dim")
    for name, value, how in _lines(plan):
        table.add_row(name, value if isinstance(value, str) else f"{value:,}", Text(how))
    return table


def _lines(plan: Plan) -> list[tuple[str, int | str, str]]:
    unknown = "?"
    workers = f"{_count(plan.num_nodes, 'node')} × {plan.num_workers // plan.num_nodes}, {plan.runtime}, {plan.device}"
    passes = _count(plan.ppo_epochs, "epoch")
    updates = f"{plan.mini_batches_per_epoch} mini-batches of {plan.mini_batch_prompts} prompts × {passes}"
    if plan.strictly_on_policy:
        updates = "the whole batch at once: strictly on-policy"
    lines: list[tuple[str, int | str, str]] = [
        ("workers", plan.num_workers, workers),
        ("roles", len(plan.roles), ", ".join(plan.roles)),
        ("prompts per step", plan.num_prompts, "data.train_batch_size"),
        ("samples per step", plan.num_samples, f"{plan.num_prompts} prompts × {plan.samples_per_prompt} samples"),
        (
            "tokens per step, at most",
            plan.max_tokens,
            f"{plan.num_samples} samples × {plan.max_sequence_tokens} tokens",
        ),
        ("optimizer steps per step", plan.optimizer_steps, updates),
    ]
    if plan.critic_optimizer_steps:
        lines.append(("critic steps per step", plan.critic_optimizer_steps, "critic mini-batches × epochs"))
    rows = unknown if plan.train_rows is None else plan.train_rows
    epoch = unknown if plan.steps_per_epoch is None else plan.steps_per_epoch
    lines += [
        ("training rows", rows, ", ".join(plan.train_files)),
        ("steps per epoch", epoch, "rows / prompts per step, rounded down"),
        ("steps in total", unknown if plan.total_steps is None else plan.total_steps, _total(plan)),
    ]
    if plan.total_optimizer_steps is not None:
        lines.append(("optimizer steps in total", plan.total_optimizer_steps, "of the actor"))
    return lines


def _total(plan: Plan) -> str:
    if plan.total_steps is None:
        return "known once the data is read"
    if not plan.steps_per_epoch:
        return "trainer.total_training_steps"
    epochs = round(plan.total_steps / plan.steps_per_epoch, 2)
    return f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
