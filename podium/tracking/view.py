"""The live view: header, progress bar, headline numbers and a table of samples, sized to the terminal.

`View` holds what is shown and draws it with rich; it never writes to the terminal itself. Text that a model or a data
file supplied is shown as text: no markup, no control characters, one line each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from podium.config.resolve import num_workers
from podium.config.schema import Config
from podium.tracking.headline import HEADLINES, SUPERVISED, duration, number, sparkline, trend
from podium.tracking.runlog import Sample


class View:
    def __init__(self, config: Config, total_steps: int) -> None:
        self.config = config
        self.total_steps = total_steps
        self.current_step = 0
        self.started = time.monotonic()
        self.history: dict[str, list[float]] = {name: [] for name in {*HEADLINES, *SUPERVISED}}
        self.samples: Sequence[Sample] = ()
        self.samples_step = 0
        self._first: tuple[int, float] | None = None
        """The first finished step and when: the pace is counted from there, start-up left out."""
        self._pace_s: float | None = None

    def update(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        now = time.monotonic()
        self.current_step = step
        for name, value in values.items():
            self.history[name].append(value)
        if self._first is None:
            self._first, self._pace_s = (step, now), seconds
        elif step > self._first[0]:
            self._pace_s = (now - self._first[1]) / (step - self._first[0])

    @property
    def remaining_s(self) -> float | None:
        return None if self._pace_s is None else self._pace_s * max(0, self.total_steps - self.current_step)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height
        metrics = self._metrics(width)
        parts: list[RenderableType] = [self._progress(), Text(), metrics]
        room = height - metrics.row_count - 3  # progress, blank line, and the line the cursor is on
        if room >= 5:
            parts.insert(0, self._header())
            room -= 5
        room -= 3  # blank line, title and heading of the samples
        if self.samples and room >= 1:
            parts += [Text(), self._samples(width, room)]
        yield Group(*parts)

    def _header(self) -> RenderableType:
        config, workers = self.config, num_workers(self.config)
        where = f"{workers} {config.trainer.runtime} worker{'s' if workers > 1 else ''}, device {config.trainer.device}"
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row("model", Text(f"{clean(config.actor_rollout_ref.model.path)} on {where}"))
        files = ", ".join(clean(path).removeprefix("task:") for path in config.data.train_files)
        grid.add_row("task", Text(f"{files}, trained with {config.algorithm.adv_estimator}"))
        grid.add_row("run", Text(clean(config.trainer.default_local_dir), style="cyan"))
        title = Text.assemble(("podium", "bold"), " · ", clean(config.trainer.experiment_name))
        return Panel(grid, title=title, title_align="left", border_style="blue", padding=(0, 1))

    def _progress(self) -> RenderableType:
        remaining = self.remaining_s
        left = f" · {duration(remaining)} left" if remaining else ""
        share = self.current_step / self.total_steps if self.total_steps else 1.0
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=max(1, self.total_steps), completed=self.current_step)
        step = Text(f" step {self.current_step}/{self.total_steps}", style="bold")
        grid.add_row(step, bar, f"{share:4.0%}  {duration(self.elapsed_s)}{left} ")
        return grid

    def _metrics(self, width: int) -> Table:
        """Two headlines beside each other, three on a wide terminal, one on a narrow one."""
        columns = 1 if width < 64 else 2 if width < 112 else 3
        cell = (width - 2) // columns
        grid = Table.grid(padding=(0, 0))
        for _ in range(columns):
            grid.add_column(width=cell, no_wrap=True)
        shown = SUPERVISED if self.history["loss"] else HEADLINES
        cells = [self._headline(name, cell) for name in shown]
        for start in range(0, len(cells), columns):
            grid.add_row(*cells[start : start + columns])
        return grid

    def _headline(self, name: str, width: int) -> Text:
        values = self.history[name]
        text = Text(no_wrap=True, overflow="crop")
        text.append(f" {name:<10} ", style="dim")
        if not values:
            return text.append("–", style="dim")
        shown = number(values[-1])
        if name == "validation" and len(values) > 1:
            shown = f"{number(values[0])} → {shown}"
        text.append(f"{shown:>8} ", style="bold green" if name in ("reward", "validation") else "bold")
        if name != "validation" or len(values) == 1:
            text.append(f"{trend(values)} ")
        text.append(sparkline(values, min(24, width - len(text) - 2)), style="blue")
        return text

    def _samples(self, width: int, room: int) -> Table:
        table = Table(
            title=f" samples from the validation at step {self.samples_step}",
            title_justify="left",
            title_style="dim",
            box=None,
            padding=(0, 1),
            header_style="dim",
        )
        score_width = 6
        prompt_width = max(8, int((width - score_width - 6) * 0.42))
        response_width = max(8, width - score_width - 6 - prompt_width)
        table.add_column("prompt", width=prompt_width, no_wrap=True)
        table.add_column("response", width=response_width, no_wrap=True)
        table.add_column("score", width=score_width, no_wrap=True, justify="right")
        for sample in self.samples[:room]:
            table.add_row(
                Text(cut(clean(sample.input), prompt_width, tail=0.3)),
                Text(cut(clean(sample.output), response_width)),
                Text(score_text(sample.score), style=_score_style(sample.score)),
            )
        return table


def score_text(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}" if abs(score) < 1000 else number(score)


def _score_style(score: float | None) -> str:
    if score is None:
        return "yellow"
    return "green" if score > 0 else "red"


def clean(text: str) -> str:
    """One line without characters that move the cursor or change colours."""
    text = "⏎".join(text.strip().splitlines())
    return "".join(char if char.isprintable() else "·" for char in text)


def cut(text: str, width: int, tail: float = 0.5) -> str:
    """At most `width` cells: the beginning and the end, which hold the question and the answer."""
    if cell_len(text) <= width:
        return text
    last = int((width - 1) * tail)
    return set_cell_size(text, width - 1 - last) + "…" + set_cell_size(text[::-1], last)[::-1]
