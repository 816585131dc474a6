"""The few numbers a person watches, picked from a step's metrics, and how they look as text.

Nothing here prints.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

HEADLINES = ("reward", "validation", "KL", "entropy", "length", "tokens/s")
SUPERVISED = ("loss", "accuracy", "tokens/s")
"""The headlines of a run that learns from finished responses."""
_SOURCES = {
    "reward": ("critic/score/mean", "critic/rewards/mean"),
    "KL": ("actor/reward_kl_penalty", "actor/kl_loss"),
    "entropy": ("actor/entropy",),
    "length": ("response_length/mean",),
    "loss": ("sft/loss", "rm/loss"),
    "accuracy": ("rm/accuracy",),
}
"""For each headline the metrics that can supply it; the first one present does. KL: to the reference, where a run has
one; that to the old policy is 0 by construction with one update per batch, and would look like a model that stands."""
_CORE = re.compile(r"val-core/(?P<source>.+)/(?P<variable>[^/]+)/mean@\d+")
_BARS = "▁▂▃▄▅▆▇█"


def headline_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """The headlines a step's metrics can supply; non-finite numbers are left out."""
    values = {}
    for name, sources in _SOURCES.items():
        found = next((metrics[source] for source in sources if source in metrics), None)
        if found is not None:
            values[name] = found
    tokens, seconds = metrics.get("perf/total_num_tokens"), metrics.get("perf/time_per_step")
    if tokens and seconds:
        values["tokens/s"] = tokens / seconds
    elif "perf/throughput" in metrics:
        values["tokens/s"] = metrics["perf/throughput"]
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def no_signal(metrics: Mapping[str, float]) -> str:
    """Why a step taught nothing, when every advantage in it is 0; else an empty text."""
    spread = [abs(metrics.get(f"critic/advantages/{end}", 1.0)) for end in ("min", "max")]
    groups = int(metrics.get("critic/zero_std_groups", 0))
    if max(spread) > 1e-9 or not groups:
        return ""
    return f"no signal: equal rewards {'in the one group' if groups == 1 else f'in all {groups} groups'}"


def validation_scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """The main validation number of each data source: accuracy where there is one, else score, else reward."""
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if (match := _CORE.fullmatch(name)) and math.isfinite(value):
            found.setdefault(match["source"], {})[match["variable"]] = float(value)
    scores = {}
    for source, variables in found.items():
        main = next((name for name in ("acc", "score", "reward") if name in variables), next(iter(variables)))
        scores[source] = variables[main]
    if scores:
        return scores
    prefix = "val/test_score/"
    plain = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return {source: float(value) for source, value in plain.items() if math.isfinite(value)}


def mean_score(metrics: Mapping[str, float]) -> float | None:
    """One number for all data sources, each counting the same."""
    scores = validation_scores(metrics)
    return sum(scores.values()) / len(scores) if scores else None


def number(value: float) -> str:
    """About three digits that matter, in at most eight characters for what training shows."""
    size = abs(value)
    if size >= 1e6:
        return f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    if size >= 0.001 or size == 0:
        return f"{value:.3f}"
    return f"{value:.1e}"


def duration(seconds: float) -> str:
    """1:05, or 2:03:04 past an hour."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def took(seconds: float) -> str:
    """How long a run took, in the unit a person would use: 48 s, 12.5 minutes, 3.2 hours."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def sparkline(values: Sequence[float], width: int) -> str:
    """The whole history in at most `width` bars; each bar is a mean."""
    if len(values) < 2 or width < 1:
        return ""
    scale = max(map(abs, values)) or 1.0  # keeps sums of huge values finite
    size = len(values) / min(width, len(values))
    edges = [round(index * size) for index in range(min(width, len(values)) + 1)]
    means = [sum(value / scale for value in values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high - low <= 1e-12:
        return _BARS[0] * len(means)
    return "".join(_BARS[min(7, int((mean - low) / (high - low) * 8))] for mean in means)


def trend(values: Sequence[float], window: int = 5) -> str:
    """Whether the last few values are above, below or about the few before them."""
    window = min(window, len(values) // 2)
    if window == 0:
        return " "
    new, old = values[-window:], values[-2 * window : -window]
    change = sum(new) / window - sum(old) / window
    noise = 0.05 * (max(values) - min(values)) or 0.0
    if abs(change) <= noise:
        return "→"
    return "↗" if change > 0 else "↘"
