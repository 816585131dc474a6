"""What a person sees: a live view in a terminal, plain lines elsewhere, a summary at the end, nothing broken after."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console as RichConsole

from podium.config import Config, load_config
from podium.tracking import Console, RunSummary, Sample
from podium.tracking.view import View, clean, cut

METRICS = {"critic/score/mean": 0.5, "actor/entropy": 1.25, "response_length/mean": 5.0, "timing_s/step": 2.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in ("NO_COLOR", "CI", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return load_config(None, [f"trainer.default_local_dir={tmp_path / 'run'}"])


def run(config: Config, file: io.StringIO) -> str:
    with Console(config, 2, file=file) as console:
        console.validation(0, {"val-core/addition/acc/mean@1": 0.25}, [Sample("1+[b]1[/b]=", "\x1b[31m2", 1.0)])
        console.step(1, METRICS)
        console.message("saved [red]a[/red] checkpoint")
        console.step(2, METRICS)
        console.validation(2, {"val-core/addition/acc/mean@1": 0.875})
        console.finish(RunSummary(minutes=1.5, checkpoints=["run/checkpoints/global_step_2"]))
    return file.getvalue()


def test_without_a_terminal_each_step_is_one_plain_line(config: Config) -> None:
    text = run(config, io.StringIO())
    lines = text.splitlines()
    assert "\x1b" not in text
    assert "validation at step 0: addition 0.250" in lines
    assert "  sample  score 1.00  '1+[b]1[/b]=' -> '·[31m2'" in lines
    assert "step 1/2  reward 0.500  entropy 1.25  length 5.00  2.00 s  0:02 left" in lines
    assert "saved [red]a[/red] checkpoint" in lines
    assert len([line for line in lines if line.startswith("step ")]) == 2


@pytest.mark.parametrize("name", ["NO_COLOR", "CI"])
def test_a_terminal_that_asks_for_plain_output_gets_it(
    name: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    text = run(config, Terminal())
    assert "\x1b" not in text
    assert "step 1/2  reward 0.500" in text


FLAT = METRICS | {"critic/zero_std_groups": 8.0, "critic/advantages/min": 0.0, "critic/advantages/max": 0.0}
LEARNT = METRICS | {"critic/zero_std_groups": 2.0, "critic/advantages/min": -0.5, "critic/advantages/max": 1.0}


def test_a_step_that_taught_nothing_says_why_and_the_next_ones_like_it_do_not_repeat_it(config: Config) -> None:
    file = io.StringIO()
    with Console(config, 6, file=file) as console:
        for step, metrics in enumerate([LEARNT, FLAT, FLAT, LEARNT, FLAT], 1):
            console.step(step, metrics)
    lines = [line for line in file.getvalue().splitlines() if line.startswith("step ")]
    reason = "  no signal: equal rewards in all 8 groups"
    assert [line.endswith(reason) for line in lines] == [False, True, False, False, True]


def test_the_live_view_says_it_too(config: Config) -> None:
    file = Terminal()
    with Console(config, 6, file=file) as console:
        for step in (1, 2):
            console.step(step, FLAT)
    assert file.getvalue().count("step 1: no signal: equal rewards in all 8 groups") == 1
    assert "step 2: no signal" not in file.getvalue()


def test_a_step_of_lone_samples_teaches_all_the_same(config: Config) -> None:
    file = io.StringIO()
    with Console(config, 2, file=file) as console:  # every group of one is flat, and a critic's advantages are not
        console.step(1, LEARNT | {"critic/zero_std_groups": 8.0})
    assert "no signal" not in file.getvalue()


def test_a_single_validation_is_not_shown_as_a_change(config: Config) -> None:
    file = io.StringIO()
    with Console(config, 2, file=file) as console:
        console.validation(2, {"val-core/addition/acc/mean@1": 0.875})
        console.finish(RunSummary(minutes=1.5))
    assert "validation   0.875" in file.getvalue().splitlines()


def test_the_summary_says_before_after_and_where_to_look(config: Config) -> None:
    lines = run(config, io.StringIO()).splitlines()
    folder = config.trainer.default_local_dir
    assert "finished: 2 steps in 90 s" in lines
    assert "validation   0.250 → 0.875" in lines
    assert "checkpoint   run/checkpoints/global_step_2" in lines
    assert f"metrics      {folder}/metrics.jsonl" in lines
    assert f"next         podium train {folder}/config.yaml trainer.total_training_steps=4" in lines


def test_a_terminal_gets_the_live_view_and_the_cursor_back(config: Config) -> None:
    text = run(config, Terminal())
    assert "podium" in text
    assert "step 2/2" in text
    assert "0.250 → 0.875" in text
    assert "saved [red]a[/red] checkpoint" in text
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")


@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_the_log_file_has_the_plain_lines_either_way(file: type[io.StringIO], config: Config) -> None:
    run(config, file())
    log = (Path(config.trainer.default_local_dir) / "console.log").read_text()
    assert "step 1/2  reward 0.500" in log
    assert "saved [red]a[/red] checkpoint" in log
    assert "validation   0.250 → 0.875" in log
    assert "\x1b" not in log


def test_an_exception_gives_terminal_logging_and_warnings_back(config: Config) -> None:
    handlers, level, show = list(logging.root.handlers), logging.getLogger("podium").level, warnings.showwarning
    streams, terminal = (sys.stdout, sys.stderr), Terminal()
    with pytest.raises(RuntimeError), Console(config, 2, file=terminal) as console:
        console.step(1, METRICS)
        raise RuntimeError
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
    assert (logging.root.handlers, logging.getLogger("podium").level) == (handlers, level)
    assert warnings.showwarning is show
    assert (sys.stdout, sys.stderr) == streams
    console.stop()


def test_logging_and_warnings_pass_through_the_console(config: Config) -> None:
    file = io.StringIO()
    with Console(config, 2, file=file):
        logging.getLogger("podium.trainer").info("published [version] 3")
        logging.getLogger("elsewhere").info("chatter")
        logging.getLogger("elsewhere").warning("trouble")
        warnings.showwarning("old thing", DeprecationWarning, "lib.py", 7)
    lines = file.getvalue().splitlines()
    assert "INFO podium.trainer: published [version] 3" in lines
    assert "WARNING elsewhere: trouble" in lines
    assert "DeprecationWarning: old thing (lib.py:7)" in lines
    assert "chatter" not in file.getvalue()


def test_a_handler_of_the_users_own_is_not_doubled(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    handler = logging.StreamHandler(stream)
    logging.root.addHandler(handler)
    file = io.StringIO()
    try:
        with Console(config, 2, file=file):
            logging.getLogger("podium").warning("once")
            monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    finally:
        logging.root.removeHandler(handler)
    assert "once" not in file.getvalue()
    assert "once" in (Path(config.trainer.default_local_dir) / "console.log").read_text()


def test_logging_freq_thins_the_lines_but_not_the_last(config: Config) -> None:
    config.trainer.logging_freq, file = 3, io.StringIO()
    with Console(config, 7, file=file) as console:
        for step in range(1, 8):
            console.step(step, METRICS)
    assert [line.split()[1] for line in file.getvalue().splitlines() if line.startswith("step")] == [
        "3/7",
        "6/7",
        "7/7",
    ]


def test_without_console_in_the_loggers_only_the_log_file_is_written(config: Config) -> None:
    config.trainer.logger = []
    assert run(config, Terminal()) == ""
    assert "step 1/2" in (Path(config.trainer.default_local_dir) / "console.log").read_text()


def test_a_reader_that_went_away_does_not_end_the_run(config: Config) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    run(config, Gone())
    assert "step 2/2" in (Path(config.trainer.default_local_dir) / "console.log").read_text()


@pytest.mark.parametrize(("width", "height"), [(40, 12), (60, 16), (80, 24), (120, 30), (200, 60)])
def test_the_view_fits_the_terminal(width: int, height: int, config: Config) -> None:
    view = View(config, 1000)
    config.actor_rollout_ref.model.path = "very/long/" * 30
    view.samples = [Sample("问题 " * 80, "long\nanswer " * 80, score) for score in (0.5, None, -12345.0, 1.0)]
    for step in range(1, 300):
        view.update(step, {"reward": step / 300, "KL": 1e-9, "tokens/s": 123456.7}, 1.0)
    view.history["validation"] += [0.1, 0.9]
    console = RichConsole(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) < height
    assert "step 299/1000" in console.file.getvalue()


def test_model_text_is_one_harmless_line() -> None:
    assert clean("a\r\nb\n\x1b[2J\x07c\u2028d") == "a⏎b⏎·[2J·c⏎d"
    assert cut("question ........ answer", 11) == "quest…nswer"
    assert cut("short", 5) == "short"
    assert all(cell_len(cut("漢字" * 20, width)) <= width for width in range(1, 30))


def test_the_time_left_follows_the_pace_of_the_steps(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 103.0, 106.0])
    monkeypatch.setattr("podium.tracking.view.time.monotonic", lambda: next(clock))
    view = View(config, 10)
    view.update(1, {}, 30.0)
    assert view.remaining_s == 270.0
    view.update(2, {}, 3.0)
    view.update(3, {}, 3.0)
    assert view.remaining_s == 21.0
