"""Attention for the samples of a prompt that share it: the prompt goes through the model once.

Packed order: all prompts, then all tails. A tail is what one sample adds to its prompt; its tokens see the whole prompt
and the tail up to themselves. The keys and values of a prompt are read by each of its tails; everything else in the
model (projections, feed-forward layers, the prompt's own attention) is computed once per prompt instead of once per
sample. The numbers are those of separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from podium.models.attention import SHORT_TOKENS, PackedAttention, causal_mask, explicit_attention, varlen_attention


class SharedPromptAttention:
    """`tails`: (prompt number, length) in packed order; neighbours of equal prompt and tail length are one call."""

    def __init__(
        self, prompt_lengths: Sequence[int], tails: Sequence[tuple[int, int]], device: torch.device | str
    ) -> None:
        assert tails and min(length for _, length in tails) > 0, "a shared pack has tails, and none is empty"
        self.prompts = PackedAttention(prompt_lengths, device)
        self.tails = list(tails)
        self.sizes = [sum(prompt_lengths), sum(length for _, length in tails)]
        starts = torch.tensor([0, *prompt_lengths]).cumsum(0).tolist()
        shapes = [(prompt_lengths[prompt], length) for prompt, length in tails]
        self.runs = [(len(list(same)), *shape) for shape, same in groupby(shapes)]
        own = torch.tensor([0, *(length for _, length in tails)]).cumsum(0).tolist()
        # For each tail, where the keys it sees stand: its prompt, then itself.
        pieces = [
            piece
            for (prompt, length), begin in zip(tails, own, strict=False)
            for piece in (
                torch.arange(starts[prompt], starts[prompt] + prompt_lengths[prompt]),
                torch.arange(self.sizes[0] + begin, self.sizes[0] + begin + length),
            )
        ]
        self.seen = torch.cat(pieces).to(device)
        lengths = torch.tensor([[length, prompt_length + length] for prompt_length, length in shapes])
        ends = F.pad(lengths.cumsum(0), (0, 0, 1, 0)).to(torch.int32).to(device)
        self.cu_queries, self.cu_keys = ends[:, 0].contiguous(), ends[:, 1].contiguous()
        self.longest = int(lengths[:, 0].max()), int(lengths[:, 1].max())
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def __call__(
        self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        (q0, q1), (k0, _), (v0, _) = (x.split(self.sizes, dim=2) for x in (query, key, value))
        prompts = self.prompts(layer_idx, q0, k0, v0, scaling, window)
        q = q1.squeeze(0).transpose(0, 1)  # [tail tokens, heads, D]
        k, v = (x.squeeze(0).transpose(0, 1).index_select(0, self.seen) for x in (key, value))
        if window is not None and window >= self.longest[1]:
            window = None
        if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
            tails = varlen_attention(q, k, v, self.cu_queries, self.cu_keys, self.longest, scaling, window)
        else:
            tails = self._by_run(q, k, v, scaling, window)
        return torch.cat([prompts, tails.unsqueeze(0)], dim=1)

    def _by_run(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        own = [count * length for count, _, length in self.runs]
        seen = [count * (prompt + length) for count, prompt, length in self.runs]
        outs = []
        for (count, prompt, length), rq, rk, rv in zip(
            self.runs, q.split(own), k.split(seen), v.split(seen), strict=True
        ):
            gq = rq.unflatten(0, (count, length)).transpose(1, 2)  # [n, heads, length, D]
            gk, gv = (x.unflatten(0, (count, prompt + length)).transpose(1, 2) for x in (rk, rv))
            mask = self._mask(length, prompt + length, window, q)
            if prompt + length <= SHORT_TOKENS and not q.is_cuda:
                out = explicit_attention(gq, gk, gv, mask, scaling)
            else:
                gqa = gq.shape[1] != gk.shape[1]
                out = F.scaled_dot_product_attention(gq, gk, gv, attn_mask=mask, scale=scaling, enable_gqa=gqa)
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _mask(self, queries: int, keys: int, window: int | None, like: Tensor) -> Tensor:
        entry = (queries, keys, window)
        if entry not in self._masks:
            self._masks[entry] = causal_mask(queries, keys, window, like)
        return self._masks[entry]
