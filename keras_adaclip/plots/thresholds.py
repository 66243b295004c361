"""Clipping norms of several methods in one figure, as in the papers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip import schedules
from keras_adaclip.plots.canvas import COLOURS, DPI, Canvas, label, scale_norms
from keras_adaclip.schedules import PiecewiseConstant, Schedule


def thresholds(
    methods: Mapping[str, Any],
    path: str | Path | None = None,
    title: str | None = None,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw the clipping norms of several methods over the epochs.

    The value at `n` on the horizontal axis is the norm at the end of `n` epochs of training. A run
    has no value at 0, because `ClippingMonitor` logs the norm at the end of an epoch. A schedule is
    drawn by the norms of the first and the last step of each epoch. Runs of one method are drawn as
    their mean, with a band from the smallest to the largest norm. The axis of the norms is
    logarithmic if they differ by more than a factor of ten.

    Args:
        methods: For each name one of: the `History` that `fit` returned, with a `ClippingMonitor`
            among its callbacks, or its dict; a sequence of these, one for each run; a schedule of
            `keras_adaclip.schedules` or of Keras; numbers, the norm of each epoch.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        epochs: The number of epochs that schedules are drawn for; None means those of the
            longest run.
        steps_per_epoch: The steps of an epoch, for schedules that count in steps; None takes those
            of a run.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If a method is none of these, or `ax` is no axes.
        ValueError: If there is nothing to draw, a run has no `clip_norm`, the epochs of a schedule
            are not known, or `ax` has several axes.

    Example:

    >>> import keras_adaclip as ka
    >>> decay = ka.schedules.PowerDecay(1.0, power=0.5)
    >>> figure = thresholds({"quantile": {"clip_norm": [0.2, 0.4, 0.3]}, "decay": decay})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['quantile', 'decay']
    """
    if not methods:
        raise ValueError("There is no method to draw: argument `methods` is empty.")
    listed = {
        name: list(each) if isinstance(each, list | tuple) else [each]
        for name, each in methods.items()
    }
    given = {name: _schedule_or_runs(name, methods[name], runs) for name, runs in listed.items()}
    if steps_per_epoch is None:  # Keras's `History` knows it.
        params = [getattr(run, "params", None) or {} for runs in listed.values() for run in runs]
        steps_per_epoch = next(filter(None, (each.get("steps") for each in params)), None)
    if epochs is None:
        epochs = max(map(_num_epochs, given.values()))
    if epochs < 1:
        raise ValueError("The number of epochs is not known without a run. Give `epochs`.")
    canvas = Canvas(("clipping norms",), ax, dpi, width=6.0)
    (axes,) = canvas.axes
    drawn = []
    for number, (name, method) in enumerate(given.items()):
        dashes, place = divmod(number, len(COLOURS))
        if isinstance(method, Schedule):
            at, norms = _curve(name, method, epochs, steps_per_epoch)
        else:
            length = min(map(len, method))
            at, norms = np.arange(1.0, length + 1), np.array([run[:length] for run in method])
        colour, band = COLOURS[place], (norms.min(axis=0), norms.max(axis=0))
        axes.fill_between(at, *band, color=colour, alpha=0.2, linewidth=0)
        style = {"color": colour, "linestyle": ("-", "--", ":")[dashes % 3], "linewidth": 2}
        axes.plot(at, norms.mean(axis=0), label=name, **style)
        drawn.append(norms.ravel())
    scale_norms(axes, np.concatenate(drawn))
    label(axes, "epochs of training", "clipping norm (L2)")
    # Many methods do not fit into the panel; the axes of the caller may have no room beside them.
    outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if canvas.is_new else {}
    axes.legend(frameon=False, **outside)
    return canvas.finish(path, title, "Clipping norms")


def _schedule_or_runs(name: str, method: Any, runs: list[Any]) -> Schedule | list[np.ndarray]:
    """Return the schedule of a method, or the norms of each of its runs, epoch by epoch."""
    histories = [getattr(each, "history", each) for each in runs]
    if histories and all(isinstance(each, Mapping) for each in histories):
        if not all(len(each.get("clip_norm", ())) for each in histories):
            raise ValueError(
                f"The history of {name!r} has no 'clip_norm'. Train with a "
                "`keras_adaclip.callbacks.ClippingMonitor` among the callbacks."
            )
        return [np.asarray(each["clip_norm"], np.float64) for each in histories]
    if isinstance(method, Sequence | np.ndarray) and not isinstance(method, str):
        return PiecewiseConstant(np.asarray(method, np.float64).tolist())
    return schedules.get(method)


def _num_epochs(method: Schedule | list[np.ndarray]) -> int:
    """Return the epochs of the longest run, or of a sequence of numbers; 0 for a schedule."""
    if isinstance(method, PiecewiseConstant):
        return len(method.values)
    return 0 if isinstance(method, Schedule) else max(map(len, method))


def _curve(
    name: str, schedule: Schedule, epochs: int, steps_per_epoch: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs, and norms of shape `(1, 2 * epochs)`: at the first and last step of each."""
    steps_per_epoch = getattr(schedule, "steps_per_epoch", None) or steps_per_epoch
    if steps_per_epoch is None:
        if not schedule.needs_steps_per_epoch:
            raise ValueError(
                f"The schedule of {name!r} counts in steps. Give `steps_per_epoch`, the steps of "
                "an epoch, or a `History` beside it."
            )
        steps_per_epoch = 1
    first = np.arange(epochs) * steps_per_epoch
    steps = np.stack([first, first + steps_per_epoch - 1], axis=1).ravel()
    norms = [schedule.value_at(int(step), steps_per_epoch) for step in steps]
    return np.repeat(np.arange(epochs + 1.0), 2)[1:-1], np.array([norms])
