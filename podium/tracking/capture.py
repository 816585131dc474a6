"""While a console is open, logging and warnings speak through it; afterwards everything is as it was.

Handlers that write to the terminal are pointed at the current stdout and stderr, which a live view has replaced. Log
records of Podium (from INFO) and of others (from WARNING) are shown when nobody else shows them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO


class OutputCapture:
    def __init__(self, show: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._handler = _Handler(show)
        self._quiet = _Handler(note)
        self._show = show
        self._moved: list[tuple[logging.StreamHandler[Any], TextIO]] = []
        self._added: logging.Handler | None = None
        self._level = logging.NOTSET
        self._showwarning: Callable[..., Any] = warnings.showwarning

    def install(self) -> None:
        podium = logging.getLogger("podium")
        self._level = podium.level
        if podium.level == logging.NOTSET:
            podium.setLevel(logging.INFO)
        root_is_heard = False
        for logger, handler, current in _terminal_handlers():
            root_is_heard |= logger is logging.root
            if current is not handler.stream:
                self._moved.append((handler, handler.stream))
                handler.setStream(current)
        # Where somebody already prints the records, they only go to the log file from here.
        self._added = self._quiet if root_is_heard else self._handler
        logging.root.addHandler(self._added)
        self._showwarning = warnings.showwarning
        warnings.showwarning = self._warn

    def remove(self) -> None:
        warnings.showwarning = self._showwarning
        if self._added is not None:
            logging.root.removeHandler(self._added)
            self._added = None
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
        logging.getLogger("podium").setLevel(self._level)

    def _warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is not None:
            self._showwarning(message, category, filename, lineno, file, line)
        else:
            self._show(f"{category.__name__}: {message} ({filename}:{lineno})")


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.split(".")[0] == "podium")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except (OSError, ValueError):
            self.handleError(record)


def _terminal_handlers() -> Iterator[tuple[logging.Logger, logging.StreamHandler[Any], TextIO]]:
    """Every handler that writes to the real stdout or stderr, with its logger and what stands there now."""
    loggers = [
        logging.root,
        *(item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)),
    ]
    for logger in loggers:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                number = _descriptor(handler.stream)
                for at, current, original in ((1, sys.stdout, sys.__stdout__), (2, sys.stderr, sys.__stderr__)):
                    if handler.stream is original or number == at:
                        yield logger, handler, current


def _descriptor(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError, TypeError):
        return None
