"""How far something is that takes longer than two seconds, in one line of the terminal.

The line stands on the error stream, is written over while the work goes on, and is wiped when it
ends. Nothing is written where that stream is no terminal, nor with `KERAS_ADACLIP_PROGRESS=0` in
the environment.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

SECONDS_WITHOUT_A_WORD = 2.0
_SECONDS_BETWEEN = 0.5
_SWITCH = "KERAS_ADACLIP_PROGRESS"

# What is open in this process, the outermost first; and how often it was asked for silence.
_open: list["Progress"] = []
_num_silencers = 0


class Progress:
    """Work that is open: `with Progress(...) as progress:`, and `advance` when a part is done.

    A thread writes the line, so that `advance` costs next to nothing and the line also moves on
    while a part takes long. Work that begins inside of other work adds to the line of that one.

    Args:
        label: what is being done, in words.
        total: number of parts; None where that is not known, and then nothing tells the time left.
        unit: what the parts are, in the plural.
        stream: where the line goes; None means the error stream.
        clock: seconds that never go back.

    Example:

    >>> with Progress("counting", total=3, unit="numbers") as progress:
    ...     for _ in range(2):
    ...         progress.advance()
    ...     progress.line()
    'Counting: 2 of 3 numbers; 0 s so far, 0 s left'
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        unit: str = "",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._words = ""
        self._num_written = 0
        self._has_ended = threading.Event()
        self._writer: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._began = self._clock()
        self._stream = self._stream or sys.stderr
        _open.append(self)
        # What is open around this one has the terminal, or had none.
        if _open[0] is self and not _num_silencers and _is_wanted(self._stream):
            self._writer = threading.Thread(target=self._keep_writing, daemon=True)
            self._writer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open.remove(self)
        self._has_ended.set()
        if self._writer is not None:
            self._writer.join()
            self._write("")

    def advance(self, number: int = 1) -> None:
        """Counts parts that are done."""
        self._done += number

    def say(self, words: str) -> None:
        """Puts words in the place of the count."""
        self._words = words

    def line(self) -> str:
        """How far it is, the time it took and the time left, and how far the work inside is."""
        opened = list(_open)  # another thread may open and end work meanwhile
        shows_inner = self in opened and not _num_silencers
        inner = opened[opened.index(self) :] if shows_inner else [self]
        seconds = self._clock() - self._began
        times = f"{in_words(seconds)} so far"
        if self._total and self._done:
            left = seconds * (self._total - self._done) / self._done
            times += f", {in_words(max(0.0, left))} left"
        outermost, *others = (each._state() for each in inner)
        line = "; ".join([outermost, times, *others])
        return line[0].upper() + line[1:]

    def _state(self) -> str:
        words = self._words
        if self._total is not None and not words:
            words = f"{self._done:,} of {self._total:,} {self._unit}".rstrip()
        return f"{self._label}: {words}" if words else self._label

    def _keep_writing(self) -> None:
        pause = SECONDS_WITHOUT_A_WORD
        while not self._has_ended.wait(pause):
            self._write(self.line())
            pause = _SECONDS_BETWEEN

    def _write(self, line: str) -> None:
        """Puts a line in the place of the one that stands there; an empty one wipes it."""
        if self._stream is None or not (line or self._num_written):
            return
        line = line[: _num_columns(self._stream) - 1]
        # A terminal that has gone away is no reason to lose the work.
        try:
            self._stream.write(f"\r{line:<{self._num_written}}" + ("" if line else "\r"))
            self._stream.flush()
        except (OSError, ValueError):
            self._has_ended.set()
        self._num_written = len(line)


@contextmanager
def silent() -> Iterator[None]:
    """Shows nothing of what begins meanwhile, where it would tell what is secret."""
    global _num_silencers
    _num_silencers += 1
    try:
        yield
    finally:
        _num_silencers -= 1


def in_words(seconds: float) -> str:
    """A length of time, in its two largest units.

    Example:

    >>> in_words(59.2), in_words(131), in_words(7_500)
    ('59 s', '2 min 11 s', '2 h 5 min')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _is_wanted(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get(_SWITCH) == "0":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no file at all, or one that was closed
        return False


def _num_columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return columns if columns > 0 else 80
