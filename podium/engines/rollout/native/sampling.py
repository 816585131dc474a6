"""From logits to tokens: filters, inverse-CDF sampling, and the log-probs of what was drawn.

The random number of a token is a hash of (seed, sample, position), so a sample depends neither on the batch nor on the
worker it runs on. Everything is a tensor operation on the logits' device. Rows do not influence each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# splitmix64's constants, as signed 64-bit numbers
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)

SUM_BLOCK = 128
"""Tokens summed at once when the vocabulary is large: a running sum over all of it would be slow and inexact."""


@dataclass(frozen=True)
class SamplingRows:
    """How each row of logits is sampled; all tensors [N]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor  # float64 in [0, 1)
    greedy: bool
    """Some row is greedy."""
    tempered: bool
    """Some row has a temperature other than 1."""
    filtered: bool
    """Some row has a filter."""

    def __getitem__(self, rows: slice) -> SamplingRows:
        return replace(
            self,
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            uniform=self.uniform[rows],
        )


def uniform(seed: Tensor, sample: Tensor, position: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, sample, position), all int64 [N]; float64 [N]."""
    bits = _mix(seed + _GOLDEN)
    bits = _mix(bits ^ (sample + _GOLDEN))
    bits = _mix(bits ^ (position + _GOLDEN))
    return _shift(bits, 11).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _MIX_1
    bits = (bits ^ _shift(bits, 27)) * _MIX_2
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, count: int) -> Tensor:
    """Logical right shift of signed 64-bit numbers."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def sample_tokens(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [N], their log-probs under the sampling distribution, and under the model; logits are float32 [N, V]."""
    scores = logits
    if rows.tempered or rows.greedy:
        scores = logits / torch.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]
    if rows.filtered:
        scores = _filter(scores, rows)
    highest = scores.amax(-1, keepdim=True)
    weights = (scores - highest).exp_()
    tokens, total = _draw(weights, rows.uniform)
    log_probs = _pick(scores, tokens) - highest.squeeze(1) - total.log()
    if rows.greedy:
        is_greedy = rows.temperature == 0
        tokens = torch.where(is_greedy, logits.argmax(-1), tokens)
        log_probs = torch.where(is_greedy, 0.0, log_probs)
    if scores is logits:
        return tokens, log_probs, log_probs
    return tokens, log_probs, _pick(logits, tokens) - logits.logsumexp(-1)


def _pick(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(1, tokens[:, None]).squeeze(1)


def _draw(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The token where the running sum of `weights` [N, V] passes u times their total, and the totals [N]."""
    num_tokens = weights.shape[1]
    if num_tokens <= 16 * SUM_BLOCK:
        cdf = weights.cumsum(-1)
        return _first_above(cdf, uniform * cdf[:, -1].double()), cdf[:, -1]
    short = -num_tokens % SUM_BLOCK
    blocks = torch.nn.functional.pad(weights, (0, short)).unflatten(1, (-1, SUM_BLOCK))  # [N, blocks, SUM_BLOCK]
    cdf = blocks.sum(-1).double().cumsum(-1)
    target = uniform * cdf[:, -1]
    block = _first_above(cdf, target)
    rows = torch.arange(len(weights), device=weights.device)
    inner = blocks[rows, block].double().cumsum(-1)
    passed = torch.where(block > 0, cdf[rows, (block - 1).clamp_(min=0)], 0.0)
    return block * SUM_BLOCK + _first_above(inner, target - passed), cdf[:, -1].float()


def _first_above(cdf: Tensor, target: Tensor) -> Tensor:
    """The first column above the target, never one of no weight: rounding may push a target to its row's total.

    A row of NaN gives some column; its log-prob is NaN, for the caller to see.
    """
    last = cdf[:, -1]
    below_last = torch.nextafter(last, torch.zeros_like(last))
    target = torch.minimum(target.to(cdf.dtype), below_last)
    return torch.searchsorted(cdf, target[:, None], right=True).squeeze(1).clamp_(max=cdf.shape[1] - 1)


def _filter(scores: Tensor, rows: SamplingRows) -> Tensor:
    """Scores [N, V] with -inf where a filter of the row drops the token."""
    num_tokens = scores.shape[1]
    ordered = scores.sort(dim=-1, descending=True).values
    top_k = torch.where(rows.top_k > 0, rows.top_k.clamp(max=num_tokens), num_tokens)
    lowest = ordered.gather(1, top_k[:, None] - 1)  # ties with the k-th stay
    kept = ordered.masked_fill(ordered < lowest, float("-inf")).softmax(-1)
    # a token stays while the likelier ones have not reached top_p; the likeliest always stays
    num_kept = ((kept.cumsum(-1) - kept) < rows.top_p[:, None]).sum(-1, keepdim=True).clamp_(min=1)
    by_p = ordered.gather(1, num_kept - 1)
    lowest = torch.where(rows.top_p[:, None] < 1.0, torch.maximum(lowest, by_p), lowest)
    by_share = ordered[:, :1] + rows.min_p[:, None].log()  # log 0 = -inf: off
    return scores.masked_fill(scores < torch.maximum(lowest, by_share), float("-inf"))
