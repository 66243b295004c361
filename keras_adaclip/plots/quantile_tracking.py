"""The clipping norm and the share of unclipped units, beside the quantile that it follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.plots.canvas import (
    BLUE,
    DPI,
    GREY,
    ORANGE,
    Canvas,
    draw_curve,
    label,
    scale_norms,
)


def quantile_tracking(
    history: Any,
    target_quantile: float,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw the clipping norm by epoch, and the share of unclipped units beside its target.

    The share is that of the last step of each epoch, with noise, as `ClippingMonitor` logs it. It
    scatters about its target, more so for small batches, and can leave the range from 0 to 1. Raw
    figures (`private_diagnostics=True`) are drawn in grey and labelled as not private.

    Args:
        history: The `History` that `fit` returned, with a `ClippingMonitor` among its callbacks, or
            its dict.
        target_quantile: A float in (0, 1), that of `QuantileClipping`.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If the history has no clipping norm or no unclipped share, the quantile is out
            of range, or `ax` has another number of axes than the figure has panels.

    Example:

    >>> logs = {"clip_norm": [0.2, 0.3, 0.31], "unclipped_fraction": [0.1, 0.4, 0.52]}
    >>> figure = quantile_tracking(logs, target_quantile=0.5)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['clipping norm (L2)', 'share of units not clipped']

    Reference:
        Andrew et al. 2021, "Differentially private learning with adaptive clipping".
    """
    target = check_between_0_and_1("target_quantile", target_quantile)
    values: Mapping[str, Any] = getattr(history, "history", history)
    for name in ("clip_norm", "unclipped_fraction"):
        if not len(values.get(name, ())):
            raise ValueError(
                f"The history has no {name!r}. Train with `QuantileClipping`, and with a "
                "`keras_adaclip.callbacks.ClippingMonitor` among the callbacks."
            )
    canvas = Canvas(("clipping norm", "share of units"), ax, dpi)
    norms, shares = canvas.axes
    clip_norms, noised = (np.asarray(values[each]) for each in ("clip_norm", "unclipped_fraction"))
    epochs = np.arange(1, len(clip_norms) + 1)
    true_norms = np.asarray(values.get("gradient_norm", ()))
    if len(true_norms):
        draw_curve(norms, epochs, true_norms, "mean norm (not private)", GREY)
    draw_curve(norms, epochs, clip_norms, "clipping norm", BLUE)
    scale_norms(norms, np.concatenate([clip_norms, true_norms]))
    label(norms, "epoch", "clipping norm (L2)")
    if "clipped_fraction" in values:
        unclipped = 1.0 - np.asarray(values["clipped_fraction"])
        draw_curve(shares, epochs, unclipped, "true mean (not private)", GREY)
    draw_curve(shares, epochs, noised, "noised, last step", BLUE)
    line = {"color": ORANGE, "linestyle": "--", "linewidth": 2}
    shares.axhline(target, label=f"target: {target:g}", **line)
    # From 0 to 1, or as far as the noise has taken a share.
    shares.set_ylim(min(0.0, np.nanmin(noised) - 0.05), max(1.0, np.nanmax(noised) + 0.05))
    label(shares, "epoch", "share of units not clipped")
    return canvas.finish(path, title, f"Clipping norm at the {target:g} quantile of the norms")
