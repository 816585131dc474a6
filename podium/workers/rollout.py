"""Rollout: a rollout engine behind DataProto.

Takes left-padded prompts, samples n responses for each, and returns them as columns of the batch's own width. A sample
depends on (seed, epoch, uid, k) alone, never on the batch or the worker it was drawn in. Asked to score, it hands each
finished group to the scorer and goes on generating. With an environment a response is an episode of several turns
(episodes.py). It does not know how the weights got into the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from podium.config.schema import Config, DataConfig, RolloutConfig
from podium.engines.rollout.base import Completion, ImagePrompt, RolloutEngine, SamplingParams
from podium.engines.rollout.front import refuse_images
from podium.protocol import DataProto, compute_position_ids, object_array
from podium.rewards.manager import OUTCOME
from podium.rewards.scorer import RewardScorer
from podium.workers.episodes import Episodes, pad_right
from podium.workers.streamed_rewards import StreamedRewards


def request_seed(seed: int, epoch: int, uid: Any) -> int:
    """A 64-bit seed of one prompt's samples."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Rollout:
    def __init__(
        self,
        engine: RolloutEngine,
        rollout: RolloutConfig,
        data: DataConfig,
        pad_token_id: int,
        rewards: StreamedRewards | None = None,
        episodes: Episodes | None = None,
    ) -> None:
        """`episodes`: what responses are made of when they have several turns."""
        self.engine, self.config, self.data, self.pad_token_id = engine, rollout, data, pad_token_id
        self.rewards, self.episodes = rewards, episodes

    def close(self) -> None:
        """End what environments hold."""
        if self.episodes is not None:
            self.episodes.close()

    def sampling(self, meta_info: dict[str, Any]) -> tuple[SamplingParams, int]:
        """The sampling of a training, validation or greedy-baseline batch, and the samples per prompt."""
        config, val = self.config, self.config.val_kwargs
        common = SamplingParams(
            self.data.max_response_length,
            stop=tuple(config.stop),
            stop_token_ids=tuple(config.stop_token_ids),
            ignore_eos=config.ignore_eos,
        )
        if meta_info.get("validate"):
            temperature = val.temperature if val.do_sample else 0.0
            return replace(common, temperature=temperature, top_p=val.top_p, top_k=val.top_k), val.n
        if meta_info.get("greedy"):
            return replace(common, temperature=0.0), 1
        common = replace(common, top_p=config.top_p, top_k=config.top_k, min_p=config.min_p)
        return replace(common, temperature=config.temperature), config.n

    def generate_sequences(self, data: DataProto) -> DataProto:
        """Rows come back in the order of the prompts, the samples of a prompt side by side."""
        params, n = self.sampling(data.meta_info)
        prompts, mask = data.tensors()["prompts"], data.tensors()["attention_mask"].bool()
        token_ids = [row[real].tolist() for row, real in zip(prompts, mask, strict=True)]
        if "multi_modal_inputs" in data.non_tensor_batch:
            token_ids = self._with_images(token_ids, list(data.non_tensor_batch["multi_modal_inputs"]))
        seed, epoch = int(data.meta_info["seed"]), int(data.meta_info["epoch"])
        seeds = [request_seed(seed, epoch, uid) for uid in data.non_tensor_batch["uid"]]
        if self.episodes is not None:
            return self.episodes.generate(data, token_ids, params, n, seeds)
        rows = torch.arange(len(data)).repeat_interleave(n)
        if self.rewards is not None and data.meta_info.get("score"):
            groups, outcomes = self.rewards.generate(self.engine, data, token_ids, params, n, seeds)
        else:
            groups, outcomes = self.engine.generate(token_ids, params, n=n, seeds=seeds), None
        batch = self._to_columns(prompts[rows], mask[rows], [completion for group in groups for completion in group])
        if outcomes is not None:
            batch.non_tensor_batch[OUTCOME] = object_array(outcomes)
        return batch

    def _with_images(self, prompts: list[list[int]], images: Sequence[Any]) -> list[list[int]]:
        if all(each is None for each in images):
            return prompts
        refuse_images(self.engine if self.episodes is None else self.episodes)
        return [p if each is None else ImagePrompt(p, each) for p, each in zip(prompts, images, strict=True)]

    def _to_columns(self, prompts: Tensor, prompt_mask: Tensor, completions: Sequence[Completion]) -> DataProto:
        responses = pad_right([c.token_ids for c in completions], self.pad_token_id, torch.long)
        response_mask = pad_right([[1] * len(c.token_ids) for c in completions], 0, torch.long)
        attention_mask = torch.cat([prompt_mask.long(), response_mask], dim=1)
        return DataProto.from_dict(
            {
                "prompts": prompts,
                "responses": responses,
                "input_ids": torch.cat([prompts, responses], dim=1),
                "attention_mask": attention_mask,
                "position_ids": compute_position_ids(attention_mask),
                "response_mask": response_mask,
                "rollout_log_probs": pad_right([c.log_probs for c in completions], 0.0, torch.float32),
                "policy_version": torch.tensor([c.version for c in completions], dtype=torch.long),
            },
            {"stop_reason": [str(c.stop_reason) for c in completions]},
        )


def make_rollout(config: Config, engine: RolloutEngine, tokenizer: Any) -> Rollout:
    """A worker's rollout by the configuration: single responses, or episodes where there is an environment."""
    scorer, settings = RewardScorer(config.reward), config.actor_rollout_ref.rollout
    rewards = StreamedRewards(scorer, tokenizer)
    episodes = None
    if config.is_multi_turn:
        episodes = Episodes(config, engine, tokenizer, scorer, getattr(engine, "max_model_len", None))
    return Rollout(engine, settings, config.data, tokenizer.pad_token_id, rewards, episodes)
