"""Episodes: multi-turn rollouts behind DataProto.

Runs the generation manager for a rollout worker and turns its episodes into the columns of a single-turn rollout, with
`info_mask` beside them: 1 where the model wrote the token, 0 where its environment did. Each group is handed to the
scorer as soon as its last episode has ended. An episode that failed is marked so that nobody scores it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from podium.agents.environment import EpisodeRow
from podium.agents.episode import Episode
from podium.agents.factory import make_environments, make_limits
from podium.agents.generation import LLMGenerationManager
from podium.agents.loop import LoopThread
from podium.config.schema import Config
from podium.engines.rollout.base import RolloutEngine, SamplingParams, StopReason
from podium.protocol import DataProto, compute_position_ids, object_array
from podium.rewards.manager import OUTCOME, Scorer, make_rows
from podium.rewards.records import Outcome, scored, skipped
from podium.stop_points import result_of

START_S, CLOSE_S = 120.0, 5.0


class Episodes:
    def __init__(
        self,
        config: Config,
        engine: RolloutEngine,
        tokenizer: Any,
        scorer: Scorer | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.scorer = engine, tokenizer, scorer
        self.loop = LoopThread()
        self.environments = make_environments(config, tokenizer)
        self.loop.run(self.environments.start(), START_S)
        limits = make_limits(config, max_model_len)
        self.manager = LLMGenerationManager(engine, tokenizer, self.environments, limits, config.data.max_obs_length)

    def generate(
        self, data: DataProto, prompts: Sequence[list[int]], params: SamplingParams, n: int, seeds: Sequence[int]
    ) -> DataProto:
        """The rows of a batch, `n` episodes each, side by side."""
        rows = episode_rows(data)
        pending: dict[int, list[Future[Outcome]]] = {}

        def finished(place: int, group: list[Episode]) -> None:
            pending[place] = self._submit(data, place, group)

        streams = self.scorer is not None and bool(data.meta_info.get("score"))
        work = self.manager.run_llm_loop(rows, prompts, params, n, seeds, finished if streams else None)
        groups = self.loop.run(work)
        episodes = [episode for group in groups for episode in group]
        known = [result_of(future) for place in range(len(groups)) for future in pending[place]] if streams else None
        outcomes = [
            outcome_of(episode, None if known is None else known[place]) for place, episode in enumerate(episodes)
        ]
        batch = to_columns(episodes, self.tokenizer.pad_token_id, self.engine.version)
        batch.non_tensor_batch[OUTCOME] = object_array(outcomes)
        return batch

    def _submit(self, data: DataProto, place: int, group: Sequence[Episode]) -> list[Future[Outcome]]:
        assert self.scorer is not None
        texts = [self._decode(episode.token_ids) for episode in group]
        written = [
            self._decode([token for token, own in zip(e.token_ids, e.info_mask, strict=True) if own]) for e in group
        ]
        return self.scorer.submit(make_rows(data.select_idxs([place] * len(group)), texts, written))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def close(self) -> None:
        """End what environments share, and the loop."""
        with contextlib.suppress(TimeoutError):  # the process ends anyway
            self.loop.run(self.environments.close(), CLOSE_S)
        self.loop.close()


def episode_rows(data: DataProto) -> list[EpisodeRow]:
    """What an environment may know of each row."""
    columns = data.non_tensor_batch
    nothing: list[Any] = [None] * len(data)
    validate = bool(data.meta_info.get("validate"))
    return [
        EpisodeRow(
            uid=str(columns["uid"][row]),
            prompt=list(columns.get("raw_prompt", nothing)[row] or []),
            data_source=str(columns.get("data_source", nothing)[row]),
            ground_truth=columns.get("ground_truth", nothing)[row],
            extra_info=columns.get("extra_info", nothing)[row],
            validate=validate,
        )
        for row in range(len(data))
    ]


def outcome_of(episode: Episode, from_function: Outcome | None) -> Outcome | None:
    """What is known of an episode's score by now; None: the reward function has yet to be asked."""
    if episode.stop_reason is StopReason.ERROR:
        return skipped(episode.error)
    return from_function if episode.reward is None else scored({"score": episode.reward})


def to_columns(episodes: Sequence[Episode], pad_token_id: int, version: int) -> DataProto:
    """Prompts padded on the left, responses with their observations on the right."""
    prompts, prompt_mask = pad_left([e.prompt for e in episodes], pad_token_id)
    responses = pad_right([e.token_ids for e in episodes], pad_token_id, torch.long)
    info_mask = pad_right([e.info_mask for e in episodes], 0, torch.long)
    real = pad_right([[1] * len(e.token_ids) for e in episodes], 0, torch.long)
    attention_mask = torch.cat([prompt_mask, real], dim=1)
    versions = [version if e.version is None else e.version for e in episodes]
    return DataProto.from_dict(
        {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": compute_position_ids(attention_mask),
            "response_mask": info_mask.clone(),
            "info_mask": info_mask,
            "rollout_log_probs": pad_right([e.log_probs for e in episodes], 0.0, torch.float32),
            "policy_version": torch.tensor(versions, dtype=torch.long),
        },
        {
            "stop_reason": [str(e.stop_reason) for e in episodes],
            "num_turns": [e.num_turns for e in episodes],
            "num_valid_actions": [e.num_valid_actions for e in episodes],
            "num_calls": [e.num_calls for e in episodes],
            "num_tool_errors": [e.num_errors for e in episodes],
            "episode_error": [e.error for e in episodes],
        },
    )


def pad_right(rows: Sequence[Sequence[Any]], value: Any, dtype: torch.dtype) -> Tensor:
    width = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype).view(len(rows), width)


def pad_left(rows: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Tokens and mask."""
    width = max((len(row) for row in rows), default=0)
    tokens = [[*[value] * (width - len(row)), *row] for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    shape = (len(rows), width)
    return torch.tensor(tokens, dtype=torch.long).view(shape), torch.tensor(mask, dtype=torch.long).view(shape)
