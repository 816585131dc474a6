"""What a person sees of a run: a live view in a terminal, plain lines anywhere else, and a summary at the end.

The same plain lines go to `console.log` in the run folder either way. While it is open, Python's logging and warnings
pass through here, so that they stand above the live view instead of breaking it. It computes nothing: numbers come from
the trainer, and the record is the run folder.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from podium.config.schema import Config
from podium.metric import Metric, reduce_metrics
from podium.output import open_dropping
from podium.tracking.capture import OutputCapture
from podium.tracking.headline import duration, headline_values, mean_score, no_signal, number, took, validation_scores
from podium.tracking.runlog import Sample
from podium.tracking.view import View, clean, cut, score_text


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. What is left out, the console knows itself or leaves unsaid."""

    status: str = "finished"
    steps: int | None = None
    minutes: float | None = None
    validation_before: float | None = None
    validation_after: float | None = None
    checkpoints: Sequence[str | Path] = ()
    next_commands: Sequence[str] = field(default_factory=list)


class Console:
    """Use it as a context manager: whatever happens inside, the terminal is given back as it was."""

    def __init__(
        self, config: Config, total_steps: int, *, file: TextIO | None = None, live: bool | None = None
    ) -> None:
        self.config = config
        self.view = View(config, total_steps)
        self._file = file or sys.stdout
        self._shown = "console" in config.trainer.logger
        self._rich = RichConsole(file=self._file, highlight=False)
        self._live: Live | None = None
        self._wants_live = self._shown and (_is_interactive(self._rich) if live is None else live)
        self._capture: OutputCapture | None = None
        self._log: TextIO | None = None
        self._told_reason = ""
        """Why the last step that was shown taught nothing."""

    def start(self) -> None:
        if self._capture is not None:
            return
        self.view.started = time.monotonic()
        self._open_log()
        if self._wants_live:
            self._live = Live(
                self.view, console=self._rich, refresh_per_second=2, vertical_overflow="crop", transient=False
            )
            self._live.start()
        self._capture = OutputCapture(self.message, self._note)
        self._capture.install()
        if self._live is None:
            self._plain(self._opening())
        else:
            self._note(self._opening())

    def step(self, step: int, metrics: Mapping[str, Metric | float]) -> None:
        """Show the numbers of a finished step."""
        numbers = reduce_metrics(metrics)
        values = headline_values(numbers)
        self.view.update(step, values, numbers.get("timing_s/step"))
        due = step % self.config.trainer.logging_freq == 0 or step == self.view.total_steps
        if not due:
            return
        reason = no_signal(numbers)
        told, self._told_reason = self._told_reason, reason
        news = reason if reason != told else ""  # the same in every step is told once
        self._say_below("  ".join(filter(None, [self._step_line(step, values, numbers.get("timing_s/step")), news])))
        if news and self._live is not None:
            self._rich.print(Text(f"step {step}: {news}"))

    def validation(self, step: int, metrics: Mapping[str, Metric | float], samples: Sequence[Sample] = ()) -> None:
        """Show a validation's accuracy and some of its samples."""
        numbers = reduce_metrics(metrics)
        score = mean_score(numbers)
        if score is not None:
            self.view.history["validation"].append(score)
        shown = list(samples)[: self.config.trainer.log_val_generations]
        if shown:
            self.view.samples, self.view.samples_step = shown, step
        scores = ", ".join(f"{source} {number(value)}" for source, value in validation_scores(numbers).items())
        self._say_below(f"validation at step {step}: {scores or 'no scores'}")
        for sample in shown:
            prompt, response = cut(clean(sample.input), 60, tail=0.3), cut(clean(sample.output), 80)
            self._say_below(f"  sample  score {score_text(sample.score)}  {prompt!r} -> {response!r}")

    def message(self, text: str) -> None:
        """Show a line above the live view."""
        if self._live is not None:
            self._rich.print(Text(text))
            self._note(text)
        else:
            self._plain(text)

    def finish(self, summary: RunSummary | None = None) -> None:
        """Close the live view and say how it went and where to look next."""
        rows = self._summary(summary or RunSummary())
        live = self._live is not None
        self._stop_live()
        lines = [f"{name:<12} {text}" if name else text for name, text in rows]
        if live:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column(overflow="fold")
            for name, text in rows[1:]:
                grid.add_row(name, Text(text, style="bold green" if name == "validation" else ""))
            self._rich.print(
                Panel(grid, title=Text(rows[0][1]), title_align="left", border_style="green", padding=(0, 1))
            )
            for line in lines:
                self._note(line)
        else:
            for line in lines:
                self._plain(line)
        self.stop()

    def stop(self) -> None:
        """Give the terminal, logging and warnings back. Safe to call again."""
        self._stop_live()
        if self._capture is not None:
            self._capture.remove()
            self._capture = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Console:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stop_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _say_below(self, line: str) -> None:
        """A line of its own in plain output; in the live view its content is already shown."""
        if self._live is None:
            self._plain(line)
        else:
            self._note(line)

    def _plain(self, line: str) -> None:
        if self._shown:
            try:
                self._file.write(f"{line}\n")
                self._file.flush()
            except OSError:  # the reader of a pipe has gone; the run goes on, its folder has everything
                self._shown = False
        self._note(line)

    def _note(self, line: str) -> None:
        """To console.log only."""
        if self._log is not None:
            self._log.write(f"{line}\n")

    def _open_log(self) -> None:
        path = Path(self.config.trainer.default_local_dir or ".") / "console.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = open_dropping(path)
        except OSError as error:
            warnings.warn(f"{path} cannot be written: {error}", RuntimeWarning, stacklevel=3)

    def _opening(self) -> str:
        config = self.config
        return (
            f"podium: {config.trainer.experiment_name}, {config.algorithm.adv_estimator} on "
            f"{config.actor_rollout_ref.model.path}, {', '.join(config.data.train_files)}, "
            f"{self.view.total_steps} steps, {config.trainer.runtime} runtime; "
            f"run folder {config.trainer.default_local_dir}"
        )

    def _step_line(self, step: int, values: Mapping[str, float], seconds: float | None) -> str:
        parts = [f"step {step}/{self.view.total_steps}"]
        parts += [f"{name} {number(value)}" for name, value in values.items()]
        if seconds is not None:
            parts.append(f"{number(seconds)} s")
        if self.view.remaining_s:
            parts.append(f"{duration(self.view.remaining_s)} left")
        return "  ".join(parts)

    def _summary(self, summary: RunSummary) -> list[tuple[str, str]]:
        history, folder = self.view.history["validation"], Path(self.config.trainer.default_local_dir)
        steps = self.view.current_step if summary.steps is None else summary.steps
        seconds = self.view.elapsed_s if summary.minutes is None else summary.minutes * 60
        before, after = summary.validation_before, summary.validation_after
        if history:
            before, after = (history[0] if before is None else before), (history[-1] if after is None else after)
        rows = [("", f"{summary.status}: {steps} step{'' if steps == 1 else 's'} in {took(seconds)}")]
        if before is not None and after is not None:
            only_one = len(history) == 1 and summary.validation_before is None
            rows.append(("validation", f"{after:.3f}" if only_one else f"{before:.3f} → {after:.3f}"))
        rows += [("checkpoint", str(path)) for path in summary.checkpoints]
        rows += [("metrics", str(folder / "metrics.jsonl"))]
        if self.view.samples:
            samples = Path(self.config.trainer.validation_data_dir or folder / "validation")
            rows.append(("samples", str(samples / f"{self.view.samples_step}.jsonl")))
        rows += [("next", command) for command in summary.next_commands or self._next_commands()]
        return rows

    def _next_commands(self) -> list[str]:
        if any(word.startswith("memory://") for word in self.config.data.train_files):
            return []  # the rows are a Python program's; the command line could not go on
        recipe = Path(self.config.trainer.default_local_dir) / "config.yaml"
        longer = max(self.view.total_steps * 2, 1)
        return [f"{_command()} train {recipe} trainer.total_training_steps={longer}"]


def _command() -> str:
    """How this very program was called, so that the next command works as it stands."""
    called = Path(sys.argv[0])
    if called.name != "podium":
        return "podium"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)


def _is_interactive(console: RichConsole) -> bool:
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI"))
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only and not plain
