"""What was not finite when an optimizer step was skipped, as each rank sees it, and which of it came first.

A bad loss on one rank makes the gradients of all ranks bad, so a loss is named before any gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Culprit:
    """What one rank found when a step was skipped."""

    rank: int
    bad_loss: str | None
    bad_gradient: str | None

    def __str__(self) -> str:
        return self.bad_loss or self.bad_gradient or "another rank's loss or gradient"


def first_culprit(found: Sequence[Culprit | None]) -> str:
    """What to tell people, from what the ranks found."""
    known = [culprit for culprit in found if culprit is not None]
    named = [c for c in known if c.bad_loss] + [c for c in known if c.bad_gradient]
    if not named:
        return "a loss or gradient"
    return f"{named[0]} on rank {named[0].rank}" if len(known) > 1 else str(named[0])
