"""A metric of every client, from the worst served to the best."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.plots.canvas import BLUE, DPI, ORANGE, Canvas, draw_curve, label


def clients(
    scores: Any,
    metric: str = "loss",
    path: str | Path | None = None,
    title: str | None = None,
    *,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw a metric of every client in ascending order, and its mean.

    A mean hides whom a model serves badly, and clipping bounds what clients with unusual data
    contribute. The figure is drawn from raw data, and is not private.

    Args:
        scores: What `FederatedModel.evaluate_clients` returned.
        metric: The name of the metric.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        ax: Axes of matplotlib to draw on; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If there is no such metric.

    Example:

    >>> from types import SimpleNamespace
    >>> scores = SimpleNamespace(values={"accuracy": [0.5, 0.9, 0.7]})
    >>> figure = clients(scores, "accuracy")
    >>> figure.axes[0].get_ylabel()
    'accuracy'
    """
    if metric not in scores.values:
        raise ValueError(
            f"There is no metric {metric!r}. There are: {', '.join(map(repr, scores.values))}"
        )
    values = np.sort(np.asarray(scores.values[metric]))
    values = values[np.isfinite(values)]
    canvas = Canvas(("clients",), ax, dpi, width=5.0)
    (axes,) = canvas.axes
    shares = 100.0 * (np.arange(len(values)) + 0.5) / len(values)
    draw_curve(axes, shares, values, "one client after another", BLUE)
    line = {"color": ORANGE, "linestyle": "--", "linewidth": 2}
    axes.axhline(values.mean(), label=f"mean: {values.mean():.3g}", **line)
    axes.set_xlim(0.0, 100.0)
    label(axes, "clients, %", metric)
    return canvas.finish(path, title, f"{metric} of {len(values):,} clients")
