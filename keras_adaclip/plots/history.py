"""Accuracy, epsilon and clipping norm by epoch."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip import accounting
from keras_adaclip._checks import check_between_0_and_1, check_positive

# Of Okabe and Ito, which colour-blind readers tell apart.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"
# Dots per inch of a figure, unless the caller says otherwise.
_DPI = 120
# Curves of so few points are drawn with dots, and a curve of one point is seen.
_FEW = 20
# Above this factor small norms could not be told apart on a linear axis.
_WIDE = 10.0


def history(
    history: Any,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    delta: float | None = None,
    target_epsilon: float | None = None,
    ax: Any = None,
    dpi: float = _DPI,
) -> Any:
    """Draw accuracy (or loss), epsilon and clipping norm by epoch, one panel each.

    Args:
        history: The `History` that `fit` returned, or its dict.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        delta: A float in (0, 1), the delta of the curve of epsilon. None takes that of the
            `PrivacyCallback`, which `History` knows and its dict does not.
        target_epsilon: A positive float, drawn as a horizontal line. None takes the target of the
            `PrivacyCallback`, if it has one.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the history is empty, `ax` is not one axes for each panel, a number is out of
            range, or `delta` or `target_epsilon` is given for a history without epsilon.

    Example:

    >>> logs = {"accuracy": [0.5, 0.7], "epsilon": [1.1, 1.5], "clip_norm": [0.2, 0.3]}
    >>> figure = history(logs, delta=1e-5, target_epsilon=2.0)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['accuracy', 'epsilon at delta 1e-05', 'clipping norm (L2)']
    >>> figure.get_suptitle()
    'Training of 2 epochs: epsilon 1.5 at delta 1e-05'
    """
    values = getattr(history, "history", history)
    values = {name: list(curve) for name, curve in values.items() if len(curve) > 0}
    if "epsilon" not in values and (delta, target_epsilon) != (None, None):
        raise ValueError(
            "Arguments `delta` and `target_epsilon` are about epsilon, which the history does not "
            "have. Train with a `keras_adaclip.callbacks.PrivacyCallback` among the callbacks. "
            f"Received: delta={delta}, target_epsilon={target_epsilon}"
        )
    known = getattr(history, "params", None) or {}
    delta = known.get("delta") if delta is None else check_between_0_and_1("delta", delta)
    target = known.get("target_epsilon") if target_epsilon is None else target_epsilon
    at_delta = "" if delta is None else f" at delta {delta:.3g}"
    score = next((name for name in values if "accuracy" in name and name[:4] != "val_"), "loss")
    # The label of each panel, with the name, label and colour of its curves.
    layout = {
        score.replace("_", " "): [
            (score, "training (not private)", _BLUE),
            (f"val_{score}", "validation", _ORANGE),
        ],
        f"epsilon{at_delta}": [
            ("epsilon", "at most, by the accountant", _GREEN),
            ("audit_epsilon", "at least, by the audit", _ORANGE),
        ],
        "clipping norm (L2)": [("clip_norm", "clip norm", _GREEN)],
    }
    layout = {name: curves for name, curves in layout.items() if curves[0][0] in values}
    if not layout:
        raise ValueError("The history holds no epoch to plot.")
    num_epochs = max(len(curve) for curve in values.values())
    all_axes, figure = _panels(list(layout), ax, dpi)
    for axes, (name, curves) in zip(all_axes, layout.items(), strict=True):
        for key, words, colour in curves:
            if curve := values.get(key):
                # Fewer values than epochs come from `validation_freq`.
                epochs = np.arange(1, len(curve) + 1) * (num_epochs // len(curve))
                marker = "o" if len(curve) <= _FEW else None
                axes.plot(
                    epochs, curve, label=words, color=colour, linewidth=2, marker=marker, ms=4
                )
        if curves[0][0] == "epsilon" and target is not None:
            words = f"target: {check_positive('target_epsilon', target):g}"
            axes.axhline(target, label=words, color="grey", linestyle="--")
        norms = values.get("clip_norm", [])
        if curves[0][0] == "clip_norm" and max(norms) > _WIDE * min(norms) > 0.0:
            axes.set_yscale("log")
        elif curves[0][0] in ("epsilon", "clip_norm"):
            axes.set_ylim(bottom=0.0)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        if len(axes.lines) > 1:
            axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")
    if ax is None and title is None:
        title = f"Training of {num_epochs} epoch{'s' if num_epochs > 1 else ''}"
        if "epsilon" in values:
            title += f": epsilon {accounting.rounded_up(values['epsilon'][-1], 3)}{at_delta}"
    if title is not None:
        (figure.suptitle if ax is None else all_axes[0].set_title)(title)
    if path is not None:
        figure.savefig(path, dpi=dpi)
    return figure


def _panels(names: list[str], ax: Any, dpi: float) -> tuple[list[Any], Any]:
    """Return axes for the panels with these names, side by side, and their figure."""
    try:
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed for `keras_adaclip.plots`: pip install keras-adaclip[plots]"
        ) from error
    if ax is None:
        size = (4.0 * len(names), 3.4)
        figure = Figure(size, check_positive("dpi", dpi), layout="constrained")
        ax = figure.subplots(1, len(names))
    found = list(np.ravel(np.asarray(ax, object)))
    if len(found) != len(names) or not all(isinstance(each, Axes) for each in found):
        raise ValueError(
            f"Argument `ax` must be {len(names)} matplotlib axes, one for each panel "
            f"({', '.join(names)}): `figure, ax = plt.subplots(1, {len(names)})`. "
            f"Received: {len(found)} of type {type(found[0]).__name__}"
        )
    # The axes of a subfigure belong to the canvas of the whole figure.
    return found, found[0].figure.canvas.figure
