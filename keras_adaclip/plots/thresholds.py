"""Clipping norms of several methods in one figure, as in the papers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip import schedules
from keras_adaclip._checks import check_integer, optional
from keras_adaclip.plots.canvas import finished, label, line_style, panels, scale_norms
from keras_adaclip.schedules import PiecewiseConstant, Schedule

_POINTS_OF_A_SCHEDULE = 200


def thresholds(
    methods: Mapping[str, Any],
    path: str | Path | None = None,
    title: str | None = None,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
) -> Any:
    """Draw the clipping norms of several methods over the epochs.

    The value at `n` on the horizontal axis is the norm at the end of `n` epochs of training. A run
    has no value at 0, because `ClippingMonitor` logs the norm at the end of an epoch. If a schedule
    jumps between epochs, its curve has the norms before and after the jump, and a run that followed
    it has the one before. Runs of one method are drawn as their mean, with a band from the smallest
    to the largest norm. The axis of the norms is logarithmic if they differ by more than a factor
    of ten.

    Args:
        methods: For each name one of: the `History` that `fit` returned, with a `ClippingMonitor`
            among its callbacks, or its dict; a sequence of these, one for each run; a schedule of
            `keras_adaclip.schedules` or of Keras; numbers, the norm of each epoch.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title of the figure.
        epochs: The number of epochs that schedules are drawn for; None means those of the
            longest run.
        steps_per_epoch: The steps of an epoch, for schedules that count in steps; None takes those
            of a run.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If a method is none of these.
        ValueError: If there is nothing to draw, a run has no `clip_norm`, or the epochs of a
            schedule are not known.

    Example:

    >>> import keras_adaclip as ka
    >>> decay = ka.schedules.PowerDecay(1.0, power=0.5)
    >>> figure = thresholds({"quantile": {"clip_norm": [0.2, 0.4, 0.3]}, "decay": decay})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['quantile', 'decay']
    """
    if not methods:
        raise ValueError("There is no method to draw: argument `methods` is empty.")
    epochs = optional(_check_count, "epochs", epochs)
    steps_per_epoch = optional(_check_count, "steps_per_epoch", steps_per_epoch)
    if steps_per_epoch is None:
        steps_per_epoch = next(filter(None, map(_steps_per_epoch, methods.values())), None)
    given = {name: _schedule_or_runs(name, method) for name, method in methods.items()}
    epochs = _longest(given) if epochs is None else epochs
    figure, (axes,) = panels(1, width=6.0)
    drawn = []
    for number, (name, method) in enumerate(given.items()):
        style = line_style(number)
        if isinstance(method, Schedule):
            at, norms = _curve(name, method, epochs, steps_per_epoch)
            axes.plot(at, norms, label=name, **style)
        else:
            length = min(map(len, method))
            at, norms = np.arange(1, length + 1), np.array([run[:length] for run in method])
            axes.plot(at, norms.mean(axis=0), label=name, **style)
            if len(method) > 1:
                band = (norms.min(axis=0), norms.max(axis=0))
                axes.fill_between(at, *band, color=style["color"], alpha=0.2, linewidth=0)
        drawn.append(norms.ravel())
    scale_norms(axes, np.concatenate(drawn))
    label(axes, "epochs of training", "clipping norm (L2)", legend=False)
    figure.legend(loc="outside right center", frameon=False)
    return finished(figure, path, title)


def _check_count(name: str, value: Any) -> int:
    return check_integer(name, value, minimum=1)


def _schedule_or_runs(name: str, method: Any) -> Schedule | list[np.ndarray]:
    """Return the schedule of a method, or the norms of each of its runs, epoch by epoch."""
    values = getattr(method, "history", method)
    if isinstance(values, Mapping):
        return [_logged(name, values)]
    if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) and len(values):
        runs: list[Any] = [getattr(each, "history", each) for each in values]
        if all(isinstance(run, Mapping) for run in runs):
            return [_logged(name, run) for run in runs]
        return PiecewiseConstant(np.asarray(values, np.float64).tolist())
    try:
        return schedules.get(method)
    except TypeError:
        raise TypeError(
            "A method is drawn from a `History` or its dict, a sequence of these, a schedule, or "
            f"numbers. Received: for {name!r} an object of type {type(method).__name__}"
        ) from None


def _logged(name: str, values: Mapping[str, Any]) -> np.ndarray:
    if not len(values.get("clip_norm", ())):
        raise ValueError(
            f"The history of {name!r} has no 'clip_norm'. Train with a "
            "`keras_adaclip.callbacks.ClippingMonitor` among the callbacks."
        )
    return np.asarray(values["clip_norm"], np.float64)


def _steps_per_epoch(method: Any) -> int | None:
    """Return the steps of an epoch of a run, which Keras's `History` knows."""
    if isinstance(method, Sequence) and not isinstance(method, str):
        return next(filter(None, map(_steps_per_epoch, method)), None)
    steps = (getattr(method, "params", None) or {}).get("steps")
    return int(steps) if steps else None


def _longest(methods: Mapping[str, Schedule | list[np.ndarray]]) -> int:
    """Return the epochs of the longest run, or sequence of numbers."""
    lengths = [0]
    for method in methods.values():
        if isinstance(method, PiecewiseConstant):
            lengths.append(len(method.values))
        elif not isinstance(method, Schedule):
            lengths += [len(run) for run in method]
    if max(lengths) == 0:
        raise ValueError(
            "How far schedules are to be drawn is not known without a run beside them. "
            "Give `epochs`."
        )
    return max(lengths)


def _curve(
    name: str, schedule: Schedule, epochs: int, steps_per_epoch: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return points of a schedule; where it jumps once an epoch, the curve does."""
    own = getattr(schedule, "steps_per_epoch", None)
    if own is None and schedule.needs_steps_per_epoch:
        own = steps_per_epoch or 1
    steps_of_epoch = own or steps_per_epoch
    if steps_of_epoch is None:
        raise ValueError(
            f"The schedule of {name!r} counts in steps. Give `steps_per_epoch`, the steps of an "
            "epoch, or a `History` beside it."
        )
    if own is not None:
        at = np.repeat(np.arange(epochs + 1.0), 2)[1:-1]  # 0, 1, 1, 2, 2, ..., epochs
        steps = np.repeat(np.arange(epochs), 2) * steps_of_epoch
    else:
        num_steps = epochs * steps_of_epoch
        num_points = min(num_steps, _POINTS_OF_A_SCHEDULE) + 1
        steps = np.linspace(0, num_steps, num_points).round().astype(int)
        at = steps / steps_of_epoch
    return at, np.array([schedule.value_at(int(step), steps_of_epoch) for step in steps])
