"""Spread sequences over ranks or micro-batches so that all have about the same work.

The largest-differencing method: keep partial solutions in a heap by the spread between their fullest and emptiest part,
and merge the two of largest spread, fullest parts onto emptiest. Where parts must also have equally many items, swaps
between parts finish the work. Deterministic. It balances; it does not know what a rank is.
Karmarkar and Karp, "The differencing method of set partitioning", 1982.
"""

from __future__ import annotations

import heapq
from bisect import bisect, insort
from collections.abc import Sequence

_EMPTIEST = 8
"""Parts that the fullest tries to swap with before it is set aside."""
Part = tuple[float, int, list[int]]
"""Cost, a number that orders equals, and the items."""


def sequence_cost(length: float, a: float) -> float:
    """The work of one sequence: a·L + L². `a` comes from the model's shape: linear work over attention's, per token."""
    return a * length + length * length


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[float], k_partitions: int, equal_size: bool = False
) -> list[list[int]]:
    """Item indices of each of `k_partitions` parts, sorted, so that the summed costs are about equal.

    With `equal_size` the parts also have equally many items (within one when it does not divide). Without, a part is
    empty only when there are fewer items than parts.
    """
    assert k_partitions >= 1, f"k_partitions must be at least 1; got {k_partitions}"
    # Largest first; equal costs by index, so that equal input gives equal output.
    order = sorted(range(len(seqlen_list)), key=lambda item: (-seqlen_list[item], item))
    if equal_size:
        states = _rounds(seqlen_list, order, k_partitions)
    else:
        states = [[(float(seqlen_list[item]), item, [item])] for item in order]
    parts = _difference(states, k_partitions)
    filled = [items for _, _, items in parts] + [[] for _ in range(k_partitions - len(parts))]
    if equal_size:
        _swap(filled, seqlen_list)
    if len(order) >= k_partitions:
        _fill_empty(filled, seqlen_list)
    return sorted((sorted(items) for items in filled), key=lambda items: (not items, items))


def _rounds(costs: Sequence[float], order: list[int], k: int) -> list[list[Part]]:
    """States of k parts with one item each; the last is filled up with empty parts of cost 0."""
    states = []
    for start in range(0, len(order), k):
        state: list[Part] = [(float(costs[item]), item, [item]) for item in order[start : start + k]]
        state += [(0.0, len(order) + i, []) for i in range(k - len(state))]
        states.append(sorted(state))
    return states


def _spread(state: list[Part], k: int) -> float:
    return state[-1][0] - (state[0][0] if len(state) == k else 0.0)


def _difference(states: list[list[Part]], k: int) -> list[Part]:
    """Merge until one state is left. A state is sorted ascending and leaves out parts that have nothing yet."""
    heap = [(-_spread(state, k), number, state) for number, state in enumerate(states)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, large = heapq.heappop(heap)
        _, _, small = heapq.heappop(heap)
        merged = _merge(large, small, k)
        heapq.heappush(heap, (-_spread(merged, k), number, merged))
        number += 1
    return heap[0][2] if heap else []


def _merge(left: list[Part], right: list[Part], k: int) -> list[Part]:
    """Fullest onto emptiest: both as k parts, one ascending and one descending, added pairwise."""
    if len(left) < len(right):
        left, right = right, left
    if len(left) + len(right) <= k:
        for part in right:
            insort(left, part)
        return left
    free = k - len(left)
    merged = list(left)
    merged_tail = right[len(right) - free :] if free else []
    for i, (cost, tag, items) in enumerate(reversed(right[: len(right) - free])):
        own_cost, own_tag, own_items = merged[i]
        own_items.extend(items)
        merged[i] = (own_cost + cost, min(own_tag, tag), own_items)
    merged.extend(merged_tail)
    merged.sort()
    return merged


def _swap(parts: list[list[int]], costs: Sequence[float], tolerance: float = 1e-3) -> None:
    """Swap items of the fullest part for cheaper ones of an emptier part while that lowers the larger of the two sums.

    A part that no swap relieves (one giant item) is set aside. Ends when the fullest of the others is within
    `tolerance` of their mean, or after a few swaps per item.
    """
    ranked = [sorted((costs[item], item) for item in part) for part in parts]
    sums = [float(sum(cost for cost, _ in part)) for part in ranked]
    open_parts = list(range(len(parts)))
    for _ in range(4 * len(costs)):
        open_parts.sort(key=lambda i: (sums[i], i))
        fullest = open_parts[-1]
        if sums[fullest] <= sum(sums[i] for i in open_parts) / len(open_parts) * (1.0 + tolerance):
            break
        for other in open_parts[: min(_EMPTIEST, len(open_parts) - 1)]:
            pair = _best_pair(ranked[fullest], ranked[other], (sums[fullest] - sums[other]) / 2)
            if pair is not None:
                _exchange(ranked[fullest], ranked[other], *pair)
                moved = pair[0][0] - pair[1][0]
                sums[fullest], sums[other] = sums[fullest] - moved, sums[other] + moved
                break
        else:
            open_parts.pop()
    parts[:] = [[item for _, item in part] for part in ranked]


Item = tuple[float, int]


def _best_pair(full: list[Item], light: list[Item], half_gap: float) -> tuple[Item, Item] | None:
    """The items whose costs differ by closest to half the gap, if swapping them narrows it."""
    best, best_error = None, half_gap * (1.0 - 1e-9)
    for item in full:
        at = bisect(light, (item[0] - half_gap, -1))
        for candidate in light[max(0, at - 1) : at + 1]:
            error = abs(item[0] - candidate[0] - half_gap)
            if error < best_error:
                best, best_error = (item, candidate), error
    return best


def _exchange(full: list[Item], light: list[Item], heavy: Item, cheap: Item) -> None:
    full.remove(heavy)
    light.remove(cheap)
    insort(full, cheap)
    insort(light, heavy)


def _fill_empty(parts: list[list[int]], costs: Sequence[float]) -> None:
    """Items of cost 0 can leave parts without any: take the cheapest item of the part with most items."""
    for part in parts:
        if not part:
            donor = max(parts, key=len)
            cheapest = min(donor, key=lambda item: (costs[item], item))
            donor.remove(cheapest)
            part.append(cheapest)
