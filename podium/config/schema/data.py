"""What is read: the rows of training and validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class DataConfig:
    train_files: list[str] = field(default_factory=lambda: ["task:addition"])
    """Parquet or jsonl files, `datasets` folders, or built-in tasks as `task:<name>`."""
    val_files: list[str] = field(default_factory=list)
    """Validation files. Empty: the validation split of the built-in training tasks, or no validation."""
    train_batch_size: int = 64
    """Prompts per training step."""
    val_batch_size: int | None = None
    """Prompts per validation batch. Null: all at once."""
    max_prompt_length: int = 512
    """Tokens. What happens to a longer prompt is `overlong_prompts`. An episode ends before a turn that would begin
    with more."""
    max_response_length: int = 512
    """Tokens a response may have; in an episode, each turn."""
    max_start_length: int | None = None
    """Tokens an episode's prompt may have, so that the episode has room to grow to `max_prompt_length`. Null: all."""
    max_obs_length: int = 500
    """Tokens of what an environment answers to a turn; the rest is cut."""
    train_data_num: int | None = None
    """Use only this many training rows."""
    val_data_num: int | None = None
    """Use only this many validation rows."""
    shuffle: bool = True
    """Shuffle the training rows anew each epoch."""
    overlong_prompts: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt past `max_prompt_length`."""
    prompt_key: str = "prompt"
    """The column that holds the prompt."""
    system_prompt: str | None = None
    """Put before every conversation that has no system message of its own."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as `{enable_thinking: false}`."""
    max_bad_rows: int = 0
    """Rows that cannot be used go to `quarantine.jsonl` with the reason; more than this many stop the run."""
    sampler: str | None = None
    """Your own sampler, `module:Class` or `file.py:Class`; null: shuffled epochs."""
    mix_weights: dict[str, float] = field(default_factory=dict)
    """Draw from several `train_files` by weight, file name by file name; empty: all rows once per epoch."""
    cache_dir: str = ""
    """Where large parquet files are kept as Arrow files for memory mapping. Empty: `.podium_cache` beside the file."""

    @property
    def prompt_limit(self) -> int:
        """Tokens a data row's prompt may have."""
        return min(self.max_prompt_length, self.max_start_length or self.max_prompt_length)
