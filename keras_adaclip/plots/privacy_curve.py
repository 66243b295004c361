"""Epsilon of what has run: over delta, and as training went on."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    check_accountant,
    check_delta,
    default_delta,
    ledger_epsilon,
    quick_epsilon,
    rows_relation,
)
from keras_adaclip.plots.canvas import BLUE, ORANGE, finished, panels

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
) -> Any:
    """Epsilon over delta, and over the epochs so far, of everything that a ledger holds.

    Both curves are upper bounds; by PLD they lie less than 1% above the tightest one, which takes
    several times as long and which the dot shows. A ledger keeps how often each mechanism ran, not
    the order in which training went to and fro between two: it is drawn as if one came after the
    other.

    Args:
        model_or_ledger: a private model, its `Ledger`, or rows of one.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.
        delta: float in (0, 1), the delta that is marked, and that the second panel holds for; None
            means `num_examples ** -1.1`, as for `PrivacyCallback`.
        accountant: `"pld"` (tight) or `"rdp"`.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
        TypeError: where there is no ledger.
        ValueError: where no step has run or one ran without noise, or `delta` is missing and the
            number of examples is not known.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 1024, 60_000, noise_multiplier=1.37).advance(2360)
    >>> figure = privacy_curve([row], delta=1e-5)
    >>> over_delta, over_epochs = figure.axes
    >>> over_epochs.get_xlabel(), over_epochs.get_title()
    ('epochs of 59 steps', 'at delta = 1e-05')
    """
    rows = _rows_of(model_or_ledger)
    accountant = check_accountant(accountant)
    if delta is None:
        num_examples = max(row.num_examples for row in rows)
        if num_examples <= 1:
            raise ValueError(
                "The ledger does not tell the number of examples or clients, from which delta "
                "would follow. Give `delta`."
            )
        delta = default_delta(num_examples)
    delta = check_delta(delta)
    spent = ledger_epsilon(rows, delta, accountant)
    if math.isinf(spent):
        raise ValueError("A step ran without noise: epsilon is infinite, and there is no curve.")
    relation = rows_relation(rows)

    def epsilon(rows_so_far: Iterable[LedgerRow], delta: float) -> float:
        return quick_epsilon(rows_so_far, delta, accountant, relation)

    figure, (over_delta, over_time) = panels(2)
    deltas = _deltas_around(delta)
    style = {"color": BLUE, "linewidth": 2}
    over_delta.plot(deltas, [epsilon(rows, each) for each in deltas], **style)
    over_delta.set_xscale("log")
    over_delta.set_xlabel("delta")
    over_delta.set_title("of all that has run", fontsize="medium")
    label = f"epsilon {spent:.3g} at delta {delta:.2g}"
    over_delta.scatter([delta], [spent], color=ORANGE, zorder=3, label=label)

    total = sum(row.steps for row in rows)
    # Epsilon grows about like a square root: most points stand where it is steep.
    steps = np.unique(np.ceil(total * np.linspace(0.0, 1.0, _NUM_TIMES + 1) ** 2).astype(int))
    steps_per_epoch, unit = _epochs_of(rows)
    values = [epsilon(_first_steps(rows, int(number)), delta) for number in steps]
    over_time.plot(steps / steps_per_epoch, values, **style)
    over_time.scatter([total / steps_per_epoch], [spent], color=ORANGE, zorder=3)
    over_time.set_xlabel(unit)
    over_time.set_title(f"at delta = {delta:.2g}", fontsize="medium")
    for axes in (over_delta, over_time):
        axes.set_ylim(bottom=0.0)
        axes.set_ylabel("epsilon (upper bound)")
        axes.grid(alpha=0.3)
    over_time.locator_params(axis="x", integer=True)
    over_delta.legend(frameon=False, loc="upper right", handletextpad=0.0)
    return finished(figure, path, title)


def _rows_of(model_or_ledger: Any) -> tuple[LedgerRow, ...]:
    """The rows in which something ran."""
    ledger = getattr(model_or_ledger, "privacy_ledger", model_or_ledger)
    if isinstance(ledger, LedgerRow):
        ledger = (ledger,)
    rows = tuple(ledger) if isinstance(ledger, Ledger | list | tuple) else (None,)
    if not all(isinstance(row, LedgerRow) for row in rows):
        raise TypeError(
            "Argument `model_or_ledger` must be a private model, a `Ledger` or rows of one. "
            f"Received: an object of type {type(model_or_ledger).__name__}"
        )
    rows = tuple(row for row in rows if row.steps > 0)
    if not rows:
        raise ValueError("No step has run yet: nothing is spent, and there is no curve to draw.")
    return rows


def _deltas_around(delta: float) -> np.ndarray:
    """Some decades of deltas on both sides of one, none above a tenth."""
    exponent = math.log10(delta)
    highest = max(min(exponent + _DECADES_AROUND, -1.0), exponent)
    return np.logspace(exponent - _DECADES_AROUND, highest, _NUM_DELTAS)


def _epochs_of(rows: tuple[LedgerRow, ...]) -> tuple[int, str]:
    """Steps of an epoch, where all rows have the same, and what the axis counts."""
    sizes = {(row.num_examples, row.expected_batch_size) for row in rows}
    num_examples, batch_size = sizes.pop()
    if sizes or num_examples == 0:
        return 1, "steps"
    steps = math.ceil(num_examples / batch_size)
    return steps, f"epochs of {steps:,} step{'s' if steps > 1 else ''}"


def _first_steps(rows: tuple[LedgerRow, ...], number: int) -> list[LedgerRow]:
    """The rows as they were after a number of steps."""
    taken = []
    for row in rows:
        steps = min(row.steps, number)
        number -= steps
        if steps > 0:
            # Passes that were begun are as many as they are at the end, in proportion.
            releases = math.ceil(row.releases * steps / row.steps)
            taken.append(dataclasses.replace(row, steps=steps, releases=releases))
    return taken
