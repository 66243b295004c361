"""Progress in one line of a terminal, with a clock and a terminal that are made up."""

import io
import os
import pty
import threading

import pytest

from keras_adaclip import _progress
from keras_adaclip._progress import Progress, silent


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class Terminal(io.StringIO):
    """Remembers what was written, and says when something was."""

    def __init__(self, is_terminal=True):
        super().__init__()
        self._is_terminal = is_terminal
        self.was_written = threading.Event()

    def isatty(self):
        return self._is_terminal

    def write(self, text):
        super().write(text)
        self.was_written.set()
        return len(text)

    def screen(self):
        """What stands on the line at the end, each carriage return writing over it."""
        line = ""
        for text in self.getvalue().split("\r"):
            line = text + line[len(text) :]
        return line.rstrip()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(_progress, "SECONDS_WITHOUT_A_WORD", 0.0)
    monkeypatch.setattr(_progress, "_SECONDS_BETWEEN", 0.001)


def test_the_time_left_follows_from_the_parts_that_are_done(clock):
    with Progress("Reading", total=2_000, unit="clients", clock=clock) as progress:
        assert progress.line() == "Reading: 0 of 2,000 clients; 0 s so far"
        clock.seconds += 30.0
        progress.advance(500)
        assert progress.line() == "Reading: 500 of 2,000 clients; 30 s so far, 1 min 30 s left"
        progress.advance(1_500)
        assert progress.line() == "Reading: 2,000 of 2,000 clients; 30 s so far, 0 s left"


def test_nothing_tells_the_time_left_without_a_total(clock):
    with Progress("solving", clock=clock) as progress:
        progress.advance()
        assert progress.line() == "Solving; 0 s so far"
        progress.say("epsilon 3.2")
        clock.seconds += 7_260
        assert progress.line() == "Solving: epsilon 3.2; 2 h 1 min so far"


def test_work_inside_of_other_work_adds_to_its_line(clock):
    with Progress("outer", clock=clock) as outer:
        with Progress("inner", total=4) as inner:
            inner.advance()
            assert outer.line() == "Outer; 0 s so far; inner: 1 of 4"
        assert outer.line() == "Outer; 0 s so far"
    assert _progress._open == []


def test_nothing_is_told_of_what_is_secret(clock):
    with Progress("outer", clock=clock) as outer, silent(), Progress("inner", total=4):
        assert outer.line() == "Outer; 0 s so far"
    terminal = Terminal()
    with silent(), Progress("alone", stream=terminal) as alone:
        assert alone._writer is None


@pytest.mark.usefixtures("_at_once")
def test_the_line_is_written_and_wiped():
    terminal = Terminal()
    with Progress("reading", total=3, stream=terminal) as progress:
        progress.advance(2)
        assert terminal.was_written.wait(timeout=60)
    assert "\rReading: " in terminal.getvalue()
    assert terminal.screen() == ""
    assert "\n" not in terminal.getvalue()
    assert not progress._writer.is_alive()


@pytest.mark.usefixtures("_at_once")
def test_a_shorter_line_leaves_nothing_of_the_longer_one():
    terminal = Terminal()
    progress = Progress("any", stream=terminal)
    progress._write("epsilon 3.25 of 3")
    progress._write("epsilon 3 of 3")
    assert terminal.screen() == "epsilon 3 of 3"


def test_what_is_quick_writes_nothing():
    terminal = Terminal()
    with Progress("reading", total=3, stream=terminal) as progress:
        progress.advance(3)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("why", ["no terminal", "switched off"])
def test_where_nobody_looks_nothing_is_written(monkeypatch, why):
    terminal = Terminal(is_terminal=why != "no terminal")
    if why == "switched off":
        monkeypatch.setenv("KERAS_ADACLIP_PROGRESS", "0")
    with Progress("reading", total=3, stream=terminal) as progress:
        assert progress._writer is None
    assert terminal.getvalue() == ""


def test_an_error_stream_that_was_closed(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    with Progress("reading") as progress:
        assert progress._writer is None


def test_an_error_ends_the_work(clock):
    terminal = Terminal()
    with pytest.raises(KeyError), Progress("reading", stream=terminal) as progress:
        raise KeyError
    assert _progress._open == []
    assert not progress._writer.is_alive()


@pytest.mark.usefixtures("_at_once")
def test_a_terminal_that_is_gone_does_not_end_the_work():
    class Gone(Terminal):
        def write(self, text):
            super().write(text)
            raise OSError(5, "Input/output error")

    terminal = Gone()
    with Progress("reading", stream=terminal) as progress:
        assert terminal.was_written.wait(timeout=60)
    assert not progress._writer.is_alive()


def test_the_line_is_as_wide_as_the_terminal():
    termios = pytest.importorskip("termios")
    master, slave = pty.openpty()
    try:
        with open(slave, "w") as terminal:
            termios.tcsetwinsize(slave, (24, 30))
            progress = Progress("reading", stream=terminal)
            progress._write("x" * 100)
            assert os.read(master, 1_000) == b"\r" + b"x" * 29
    finally:
        os.close(master)


# ---- what shows it -----------------------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch):
    """The lines of all work as it ends, as if each took long."""
    seen = []
    original = Progress.__exit__

    def recorded(self, *args):
        seen.append(self.line().rpartition(";")[0])
        original(self, *args)

    monkeypatch.setattr(Progress, "__exit__", recorded)
    return seen


def test_calibration_says_what_it_has_reached(lines):
    from keras_adaclip import accounting, schedules

    accounting.calibrate_noise_multiplier(
        3.0, 1e-5, 6_000, 100, epochs=3, noise_schedule=schedules.PiecewiseConstant([1.5, 1, 0.5])
    )
    assert any(line == "Composing: 3 of 3" for line in lines)
    assert any(
        line.startswith("Calibrating the noise: epsilon ") and line.endswith(", wanted 3")
        for line in lines
    )


def test_planning_says_what_it_solves_for(lines):
    from keras_adaclip import accounting

    plan = accounting.plan(
        target_epsilon=3.0, delta=1e-5, num_examples=6_000, batch_size=100, noise_multiplier=1.0
    )
    assert lines[-1] == "Solving for epochs"
    found = f"Finding how much the budget allows: {plan.epochs} at least, {plan.epochs} at most"
    assert found in lines


def test_dividing_counts_the_examples(lines):
    from keras_adaclip.federated import partition

    fine = list(range(10)) * 3
    partition.dirichlet(fine, num_clients=4, alpha=1.0, seed=0)
    partition.pachinko([label // 5 for label in fine], fine, num_clients=4, seed=0)
    assert lines == ["Dividing among clients: 30 of 30 examples"] * 2


def test_reading_clients_counts_them(lines, tmp_path):
    import h5py

    from keras_adaclip.federated import ClientData

    with h5py.File(tmp_path / "clients.h5", "w") as file:
        for name in "abc":
            file[f"examples/{name}/pixels"] = [[1.0], [2.0]]
    clients = ClientData.from_hdf5(tmp_path / "clients.h5", x="pixels")
    x, _ = clients.all_examples()
    assert x.shape == (6, 1)
    assert lines == ["Listing clients: 3 of 3", "Reading clients: 3 of 3"]
