"""Epsilon of a ledger, over delta and over the epochs so far."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip import accounting
from keras_adaclip.plots.canvas import BLUE, DPI, ORANGE, Canvas, draw_curve, label

_NUM_DELTAS = 33
_NUM_TIMES = 20
_DECADES_AROUND = 4


def privacy_curve(
    model_or_ledger: Any,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    delta: float | None = None,
    accountant: str = "pld",
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw epsilon over delta, and over the epochs so far, of everything that a ledger holds.

    Both curves are upper bounds. By PLD they lie less than 1% above the tightest one, which takes
    several times as long and which the dot shows. A ledger knows how often each mechanism ran, but
    not in which order two of them alternated: one is drawn after the other.

    Args:
        model_or_ledger: A private model, its `Ledger`, or rows of one.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        delta: A float in (0, 1), the delta that is marked and that the second panel uses; None
            means `num_examples ** -1.1`, as for `PrivacyCallback`.
        accountant: `"pld"` (tight) or `"rdp"`.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If no step has run or one ran without noise, `delta` is missing and the number
            of examples is not known, or `ax` has another number of axes than the figure has panels.

    Example:

    >>> from keras_adaclip.accounting import LedgerRow, Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 1024, 60_000, noise_multiplier=1.37).advance(2360)
    >>> figure = privacy_curve([row], delta=1e-5)
    >>> over_delta, over_epochs = figure.axes
    >>> over_epochs.get_xlabel(), over_epochs.get_ylabel()
    ('epochs of 59 steps', 'epsilon at delta 1e-05')
    """
    ledger = getattr(model_or_ledger, "privacy_ledger", model_or_ledger)
    rows = tuple(row for row in ledger if row.steps > 0)
    if not rows:
        raise ValueError("No step has run yet: nothing is spent, and there is no curve to draw.")
    if delta is None:
        delta = accounting.default_delta(max(row.num_examples for row in rows))
    spent = accounting.ledger_epsilon(rows, delta, accountant)
    if math.isinf(spent):
        raise ValueError("A step ran without noise: epsilon is infinite, and there is no curve.")
    relation = accounting.rows_relation(rows)

    def epsilon(rows_so_far: Iterable[accounting.LedgerRow], delta: float) -> float:
        """Return an upper bound on epsilon that is quick to compute."""
        return accounting.quick_epsilon(rows_so_far, delta, accountant, relation)

    canvas = Canvas(("epsilon over delta", "epsilon over epochs"), ax, dpi)
    over_delta, over_time = canvas.axes
    spent_in_words = f"epsilon {accounting.rounded_up(spent, 3)} at delta {delta:.3g}"
    bound = "upper bound"
    dot = {"color": ORANGE, "zorder": 3, "label": spent_in_words}
    # Some decades of deltas on both sides of the given one, none above a tenth.
    exponent = math.log10(delta)
    highest = max(min(exponent + _DECADES_AROUND, -1.0), exponent)
    deltas = np.logspace(exponent - _DECADES_AROUND, highest, _NUM_DELTAS)
    draw_curve(over_delta, deltas, [epsilon(rows, each) for each in deltas], bound, BLUE)
    over_delta.scatter([delta], [spent], **dot)
    over_delta.set_xscale("log")
    label(over_delta, "delta", "epsilon", integers=False)

    total = sum(row.steps for row in rows)
    # Epsilon grows about like a square root: most points are where it is steep.
    steps = np.unique(np.ceil(total * np.linspace(0.0, 1.0, _NUM_TIMES + 1) ** 2).astype(int))
    steps_per_epoch, unit = _epochs_of(rows)
    values = [epsilon(_first_steps(rows, int(number)), delta) for number in steps]
    draw_curve(over_time, steps / steps_per_epoch, values, bound, BLUE, marker=None)
    over_time.scatter([total / steps_per_epoch], [spent], **dot)
    label(over_time, unit, f"epsilon at delta {delta:.3g}")
    for axes in (over_delta, over_time):
        axes.set_ylim(bottom=0.0)
    return canvas.finish(path, title, f"Privacy spent: {spent_in_words}")


def _epochs_of(rows: tuple[accounting.LedgerRow, ...]) -> tuple[int, str]:
    """Return the steps of an epoch, or 1 if rows differ in it, and the label of the axis."""
    sizes = {(row.num_examples, row.expected_batch_size) for row in rows}
    num_examples, batch_size = sizes.pop()
    if sizes or num_examples == 0:
        return 1, "steps"
    steps = math.ceil(num_examples / batch_size)
    return steps, f"epochs of {steps:,} step{'s' if steps > 1 else ''}"


def _first_steps(rows: tuple[accounting.LedgerRow, ...], number: int) -> list[accounting.LedgerRow]:
    """Return the rows as they were after a number of steps."""
    taken = []
    for row in rows:
        steps = min(row.steps, number)
        number -= steps
        if steps > 0:
            # In proportion to the passes at the end, rounded up.
            releases = math.ceil(row.releases * steps / row.steps)
            taken.append(dataclasses.replace(row, steps=steps, releases=releases))
    return taken
