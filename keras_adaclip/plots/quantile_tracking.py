"""The clipping norm and the share of unclipped units, beside the quantile that it follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.plots.canvas import BLUE, GREY, ORANGE, finished, label, panels, scale_norms


def quantile_tracking(
    history: Any, target_quantile: float, path: str | Path | None = None, title: str | None = None
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
        title: The title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the history has no clipping norm or no unclipped share, or the quantile is
            out of range.

    Example:

    >>> logs = {"clip_norm": [0.2, 0.3, 0.31], "unclipped_fraction": [0.1, 0.4, 0.52]}
    >>> figure = quantile_tracking(logs, target_quantile=0.5)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['clipping norm (L2)', 'share of units that are not clipped']

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
    figure, (norms, shares) = panels(2)
    clip_norms, noised = (np.asarray(values[each]) for each in ("clip_norm", "unclipped_fraction"))
    epochs = np.arange(1, len(clip_norms) + 1)
    style = {"color": BLUE, "linewidth": 2}
    raw = {"color": GREY, "linewidth": 1.5}
    true_norms = np.asarray(values.get("gradient_norm", ()))
    if len(true_norms):
        norms.plot(epochs, true_norms, label="mean norm (not private)", **raw)
    norms.plot(epochs, clip_norms, label="clipping norm", **style)
    scale_norms(norms, np.concatenate([clip_norms, true_norms]))
    label(norms, "epoch", "clipping norm (L2)", legend=len(true_norms) > 0)
    if "clipped_fraction" in values:
        unclipped = 1.0 - np.asarray(values["clipped_fraction"])
        shares.plot(epochs, unclipped, label="true mean (not private)", **raw)
    shares.plot(epochs, noised, label="noised, last step", **style)
    line = {"color": ORANGE, "linestyle": "--", "linewidth": 2}
    shares.axhline(target, label=f"target: {target:g}", **line)
    # From 0 to 1, or as far as the noise has taken a share.
    shares.set_ylim(min(0.0, np.nanmin(noised) - 0.05), max(1.0, np.nanmax(noised) + 0.05))
    label(shares, "epoch", "share of units that are not clipped")
    return finished(figure, path, title)
