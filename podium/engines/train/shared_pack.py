"""A pack in which the samples of a prompt share it.

With n samples per prompt a plain pack carries each prompt n times. Here it stands once, and each sample adds its tail:
the response without its last token, which predicts nothing. The numbers that come out are those of a plain pack.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from podium.engines.train.images import pack_images
from podium.engines.train.packing import Pack, prompt_numbers
from podium.models.shared_prompt import SharedPromptAttention

WORTH_IT = 0.1
"""Share of the tokens that must be saved; below it, reading the prompt's keys anew for each tail costs more."""


def shared_pack(rows: TensorDict, device: torch.device, own_hidden: bool) -> Pack | None:
    """None where the rows are not of prompts on the left and responses on the right, or sharing saves too little."""
    width = rows["responses"].shape[1]
    first = rows["attention_mask"].shape[1] - width
    prompt_mask, response_mask = rows["attention_mask"].bool().split([first, width], dim=1)
    if len(rows) < 2 or not _is_regular(prompt_mask, response_mask):
        return None
    number, prompt_length = prompt_numbers(rows)
    tail_length = response_mask.sum(-1) if own_hidden else (response_mask.sum(-1) - 1).clamp(min=0)
    distinct = int(number.max()) + 1
    example = torch.zeros(distinct, dtype=torch.long, device=number.device).scatter_(
        0, number, torch.arange(len(rows), device=number.device)
    )  # some row of each prompt
    saved = int(prompt_length.sum() - prompt_length[example].sum())
    if saved < WORTH_IT * int((prompt_length + tail_length).sum()) or int(tail_length.max()) == 0:
        return None

    # Prompts shortest first, tails by (prompt length, tail length): equal shapes become one attention call.
    prompt_order = prompt_length[example].argsort(stable=True)
    example = example[prompt_order]
    rank = torch.empty_like(prompt_order).scatter_(0, prompt_order, torch.arange(distinct, device=number.device))
    number = rank[number]
    order = (prompt_length * (int(tail_length.max()) + 1) + tail_length).argsort(stable=True)

    columns = torch.arange(width, device=order.device)
    in_tail = columns[None] < tail_length[order][:, None]
    prompt_starts = prompt_length[example].cumsum(0) - prompt_length[example]
    prompt_tokens = int(prompt_length[example].sum())
    tail_starts = prompt_tokens + tail_length[order].cumsum(0) - tail_length[order]

    prompts, responses = rows["input_ids"].split([first, width], dim=1)
    prompt_positions = prompt_mask.long().cumsum(-1) - 1
    ids = [prompts[example][prompt_mask[example]], responses[order][in_tail]]
    positions = [
        prompt_positions[example][prompt_mask[example]],
        (prompt_length[order][:, None] + columns)[in_tail],
    ]
    place = tail_starts[:, None] + columns
    if not own_hidden:
        last_of_prompt = (prompt_starts + prompt_length[example] - 1)[number[order]]
        place = torch.where(columns == 0, last_of_prompt[:, None], place - 1)
    speaks = response_mask[order]
    slots = order[:, None] * width + columns
    tensors = (torch.cat(ids)[None], torch.cat(positions)[None], place[speaks], responses[order][speaks], slots[speaks])
    input_ids, position_ids, sources, labels, slots = (x.to(device, non_blocking=True) for x in tensors)
    tails = [(n, t) for n, t in zip(number[order].tolist(), tail_length[order].tolist(), strict=True) if t > 0]
    attention = SharedPromptAttention(prompt_length[example].tolist(), tails, device)
    images = pack_images(rows, example, prompt_starts, prompt_length[example], input_ids.shape[1], device)
    return Pack(input_ids, position_ids, attention, sources, labels, slots, (len(rows), width), images)


def _is_regular(prompt_mask: Tensor, response_mask: Tensor) -> bool:
    """Left-padded prompts of at least one token, right-padded responses."""
    left = prompt_mask.shape[1] > 0 and bool(prompt_mask[:, -1].all())
    rising = bool((prompt_mask[:, 1:] | ~prompt_mask[:, :-1]).all())
    falling = bool((response_mask[:, :-1] | ~response_mask[:, 1:]).all())
    return left and rising and falling
