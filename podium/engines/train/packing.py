"""From padded rows to one row of real tokens, and back.

A Pack holds the tokens of several sequences end to end, shortest first (equal lengths become one batched attention
call), and remembers where each response token's prediction lands in the padded `[rows, R]` grid. The token at response
column t is predicted by the hidden state of the token before it. Rows that share a prompt share its tokens, where that
saves enough (shared_pack.py). It does not decide which rows go together (micro_batches.py) and calls no model
(forward.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from podium.engines.train.images import PackedImages, pack_images
from podium.models.attention import AttentionPlan, PackedAttention


@dataclass(frozen=True)
class Pack:
    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    attention: AttentionPlan
    sources: Tensor  # [N] index in T of the hidden state that speaks about a response token
    labels: Tensor  # [N] that response token
    slots: Tensor  # [N] its place in the flattened [rows, R] grid
    shape: tuple[int, int]  # rows, R
    images: PackedImages | None = None

    def spread(self, per_token: Tensor) -> Tensor:
        """[N] -> [rows, R], zero where there is no token; differentiable."""
        grid = per_token.new_zeros(self.shape)
        width = max(self.shape[1], 1)
        return grid.index_put((self.slots // width, self.slots % width), per_token)  # no view: FSDP hooks the result

    def sum_per_row(self, per_token: Tensor, weights: Tensor) -> Tensor:
        """[N, H] -> [rows, H]: a row's tokens, weighted by their share of the row's `weights` [rows, R]; zero for a row
        without weight. Parts of a pack add up to the mean over the whole."""
        rows, width = self.shape
        weights = weights.to(per_token.dtype)
        share = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        sums = per_token.new_zeros(rows, per_token.shape[1])
        at = share.reshape(-1)[self.slots]
        return sums.index_add_(0, self.slots // max(width, 1), per_token * at[:, None])


def row_lengths(rows: TensorDict) -> list[int]:
    """Real tokens of each row."""
    lengths: list[int] = rows["attention_mask"].long().sum(-1).tolist()
    return lengths


def response_tokens(rows: TensorDict) -> Tensor:
    """The attention mask of the response columns, [rows, R]."""
    width = rows["responses"].shape[1]
    mask: Tensor = rows["attention_mask"][:, rows["attention_mask"].shape[1] - width :]
    return mask


def prompt_numbers(rows: TensorDict) -> tuple[Tensor, Tensor]:
    """Which of the distinct prompts each row has, and its length; both [rows]."""
    width = rows["attention_mask"].shape[1] - rows["responses"].shape[1]
    mask = rows["attention_mask"][:, :width].bool()
    ids = torch.where(mask, rows["input_ids"][:, :width], -1)
    if "image_key" in rows.keys():  # noqa: SIM118  (a TensorDict iterates over its rows)
        ids = torch.cat([ids, rows["image_key"][:, None]], dim=1)  # equal words about another picture
    return torch.unique(ids, dim=0, return_inverse=True)[1], mask.sum(-1)


def pack(rows: TensorDict, device: torch.device, *, own_hidden: bool = False) -> Pack:
    """All of `rows` as one pack on `device`; the bookkeeping runs where the rows are.

    `own_hidden`: a response token's source is its own hidden state, not its predecessor's. Otherwise the last token of
    each row predicts nothing and stays out of the model.
    """
    from podium.engines.train.shared_pack import shared_pack

    shared = shared_pack(rows, device, own_hidden)
    return plain_pack(rows, device, own_hidden) if shared is None else shared


def plain_pack(rows: TensorDict, device: torch.device, own_hidden: bool) -> Pack:
    """Every row a sequence of its own."""
    mask = rows["attention_mask"].bool()  # [b, W]
    width = rows["responses"].shape[1]
    order = mask.sum(-1).argsort(stable=True)
    mask, ids = mask[order], rows["input_ids"][order]
    index = mask.long().cumsum(-1) - 1  # a token's place in its sequence
    fed = mask if own_hidden else mask & (index < mask.sum(-1, keepdim=True) - 1)
    lengths = fed.sum(-1)
    fed_lengths = [n for n in lengths.tolist() if n > 0]
    if not fed_lengths:
        return empty_pack(device, (len(order), width))
    starts = lengths.cumsum(0) - lengths

    first = mask.shape[1] - width
    place = (starts[:, None] + index)[:, first:]
    speaks = mask[:, first:]
    if not own_hidden:
        speaks = speaks & (index[:, first:] > 0)  # the very first token has no predecessor
        place = place - 1
    slots = order[:, None] * width + torch.arange(width, device=order.device)
    tensors = (ids[fed][None], index[fed][None], place[speaks], ids[:, first:][speaks], slots[speaks])
    input_ids, position_ids, sources, labels, slots = (x.to(device, non_blocking=True) for x in tensors)
    attention = PackedAttention(fed_lengths, device)
    prompt_lengths = torch.minimum(mask[:, :first].sum(-1), lengths)
    images = pack_images(rows, order, starts, prompt_lengths, sum(fed_lengths), device)
    return Pack(input_ids, position_ids, attention, sources, labels, slots, (len(order), width), images)


def empty_pack(device: torch.device, shape: tuple[int, int] = (0, 0)) -> Pack:
    """One token that says nothing: a rank without rows still joins the collectives of a forward and backward pass."""
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    return Pack(one, one, PackedAttention([1], device), nothing, nothing, nothing, shape)
