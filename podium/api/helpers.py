"""Small pieces that TRL scripts and forks use by name. The trainers do not need them: log-probs in a run come from a
chunked head that never holds all logits, and policy and value model are trained by engines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class PolicyAndValueWrapper(nn.Module):
    """A policy and its value model as one module: `forward` gives (policy output, values [B, T])."""

    def __init__(self, policy: Any, value_model: Any) -> None:
        super().__init__()
        self.policy, self.value_model = policy, value_model
        self.critic_backbone = getattr(value_model, value_model.base_model_prefix)
        self.is_gradient_checkpointing = bool(getattr(policy, "is_gradient_checkpointing", False))

    def forward(self, **inputs: Any) -> tuple[Any, Tensor]:
        hidden = self.critic_backbone(**inputs, output_hidden_states=True, return_dict=True).hidden_states[-1]
        return self.policy(**inputs), self.value_model.score(hidden).squeeze(-1)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        self.policy.gradient_checkpointing_enable(**options)
        self.value_model.gradient_checkpointing_enable(**options)
        self.is_gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.policy.gradient_checkpointing_disable()
        self.value_model.gradient_checkpointing_disable()
        self.is_gradient_checkpointing = False


@contextmanager
def null_ref_context(
    policy: Any, ref_adapter_name: str | None = None, model_adapter_name: str | None = None
) -> Iterator[None]:
    """Inside, a peft policy is its own reference: adapters off, or another one in charge; always restored."""
    if not hasattr(policy, "disable_adapter"):
        yield
    elif ref_adapter_name is None:
        with policy.disable_adapter():
            yield
    else:
        policy.set_adapter(ref_adapter_name)
        try:
            yield
        finally:
            policy.set_adapter(model_adapter_name or "default")


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """log softmax(logits)[..., index] without the softmax of the rest: logits [..., V], index [...] -> [...]."""
    taken = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    if logits.dtype in (torch.float32, torch.float64):
        # Row by row: the normalizer of all rows at once would be a second tensor as large as the logits.
        rows = logits.reshape(-1, logits.shape[-1])
        normalizer = torch.stack([row.logsumexp(-1) for row in rows]).view(taken.shape)
        return taken - normalizer
    wide = [row.float().log_softmax(-1) for row in logits.reshape(-1, logits.shape[-1])]
    chosen = [row[place] for row, place in zip(wide, index.reshape(-1), strict=True)]
    return torch.stack(chosen).view(taken.shape).to(logits.dtype)


def truncate_response(stop_token_id: int, pad_token_id: int, responses: Tensor) -> Tensor:
    """Everything behind the first stop token of each row [B, R] becomes padding."""
    stopped_before = (responses == stop_token_id).long().cumsum(-1) - (responses == stop_token_id).long()
    return torch.where(stopped_before > 0, pad_token_id, responses)
