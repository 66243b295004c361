"""Clipping norms of several methods in one figure, as in the papers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_adaclip import schedules
from keras_adaclip._checks import check_integer
from keras_adaclip.plots.canvas import finished, line_style, panels, scale_norms
from keras_adaclip.schedules import PiecewiseConstant, Schedule

_POINTS_OF_A_SCHEDULE = 200


class _Curve(NamedTuple):
    """What is drawn of a method: the mean, and the least and the greatest of its runs."""

    epochs: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    greatest: np.ndarray


def thresholds(
    methods: Mapping[str, Any],
    path: str | Path | None = None,
    title: str | None = None,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
) -> Any:
    """Clipping norms of several methods over the epochs.

    At `n` on the horizontal axis stands the norm with which `n` epochs of training end. A run has
    none at 0, for `ClippingMonitor` logs the norm when an epoch has ended; a schedule has one
    there. Where a schedule leaps between epochs, its curve has the norms before and after the
    leap, and a run that followed it the one before. Runs of one method are drawn as their mean,
    with a band from the least to the greatest. The axis of the norms is logarithmic where they
    differ by more than a factor of ten.

    Args:
        methods: for each name one of: what `fit` returned, with a `ClippingMonitor` among its
            callbacks, or its `history` dict; a sequence of these, one a run; a schedule of
            `keras_adaclip.schedules` or of Keras; numbers, the norm of each epoch.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.
        epochs: how far schedules are drawn; None means as far as the longest run.
        steps_per_epoch: steps of an epoch, for schedules that count in steps; None takes those of
            a run.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
        TypeError: where a method is none of these.
        ValueError: where there is nothing to draw, a run has no `clip_norm`, or the epochs of a
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
    if epochs is not None:
        epochs = check_integer("epochs", epochs, minimum=1)
    if steps_per_epoch is None:
        steps_per_epoch = next(filter(None, map(_steps_per_epoch, methods.values())), None)
    else:
        steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, minimum=1)
    given = {name: _schedule_or_runs(name, method) for name, method in methods.items()}
    if epochs is None:
        epochs = _longest(given)
    curves = {
        name: _of_schedule(name, method, epochs, steps_per_epoch)
        if isinstance(method, Schedule)
        else _of_runs(method)
        for name, method in given.items()
    }
    figure, (axes,) = panels(1, width=6.0)
    for number, (name, curve) in enumerate(curves.items()):
        style = line_style(number)
        axes.plot(curve.epochs, curve.mean, label=name, **style)
        if np.any(curve.least < curve.greatest):
            band = (curve.epochs, curve.least, curve.greatest)
            axes.fill_between(*band, color=style["color"], alpha=0.2, linewidth=0)
    drawn = [norms for curve in curves.values() for norms in (curve.least, curve.greatest)]
    scale_norms(axes, np.concatenate(drawn))
    axes.set_xlabel("epochs of training")
    axes.set_ylabel("clipping norm (L2)")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    return finished(figure, path, title)


def _schedule_or_runs(name: str, method: Any) -> Schedule | list[np.ndarray]:
    """The schedule that a user means, or the norms of each run, epoch by epoch."""
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
    """Steps of an epoch of a run, as Keras's `History` knows them."""
    if isinstance(method, Sequence) and not isinstance(method, str):
        return next(filter(None, map(_steps_per_epoch, method)), None)
    steps = (getattr(method, "params", None) or {}).get("steps")
    return int(steps) if steps else None


def _longest(methods: Mapping[str, Schedule | list[np.ndarray]]) -> int:
    """The epochs of the longest run, or sequence of numbers."""
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


def _of_runs(runs: list[np.ndarray]) -> _Curve:
    """The mean of the runs, as far as all of them went."""
    length = min(len(run) for run in runs)
    values = np.array([run[:length] for run in runs])
    epochs = np.arange(1, length + 1)
    return _Curve(epochs, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def _of_schedule(name: str, schedule: Schedule, epochs: int, steps_per_epoch: int | None) -> _Curve:
    """The values at some steps; where a schedule jumps once an epoch, the curve does."""
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
    values = np.array([schedule.value_at(int(step), steps_of_epoch) for step in steps])
    return _Curve(at, values, values, values)
