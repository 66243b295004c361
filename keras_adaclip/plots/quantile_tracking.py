"""How well a clipping norm follows the quantile that it is to follow."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip._checks import check_real
from keras_adaclip.plots.canvas import BLUE, GREY, ORANGE, finished, panels, scale_norms


def quantile_tracking(
    history: Any,
    target_quantile: float,
    path: str | Path | None = None,
    title: str | None = None,
) -> Any:
    """Clipping norm by epoch, and the share of unclipped units beside its target.

    The share is that of the last step of each epoch, noised, as `ClippingMonitor` logs it: it
    scatters about its target, the more so the smaller the batch, and may leave 0 to 1. Where the
    history has the raw figures too (`private_diagnostics=True`), these are drawn in grey and said
    not to be private.

    Args:
        history: what `fit` returned, with a `ClippingMonitor` among its callbacks, or its
            `history` dict.
        target_quantile: float in (0, 1), that of `QuantileClipping`.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
        ValueError: where the history has no clipping norm or no unclipped share, or the quantile
            is out of range.

    Example:

    >>> logs = {"clip_norm": [0.2, 0.3, 0.31], "unclipped_fraction": [0.1, 0.4, 0.52]}
    >>> figure = quantile_tracking(logs, target_quantile=0.5)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['clipping norm (L2)', 'share of units that are not clipped']

    Reference:
        Andrew et al. 2021, "Differentially private learning with adaptive clipping".
    """
    target = check_real("target_quantile", target_quantile)
    if not 0.0 < target < 1.0:
        raise ValueError(
            "Argument `target_quantile` must lie between 0 and 1. "
            f"Received: target_quantile={target_quantile!r}"
        )
    values: Mapping[str, Any] = getattr(history, "history", history)
    for name in ("clip_norm", "unclipped_fraction"):
        if not len(values.get(name, ())):
            raise ValueError(
                f"The history has no {name!r}. Train with `QuantileClipping`, and with a "
                "`keras_adaclip.callbacks.ClippingMonitor` among the callbacks."
            )
    figure, (norms, shares) = panels(2)
    epochs = np.arange(1, len(values["clip_norm"]) + 1)
    style = {"color": BLUE, "linewidth": 2}
    raw = {"color": GREY, "linewidth": 1.5}
    if "gradient_norm" in values:
        norms.plot(epochs, values["gradient_norm"], label="mean norm (not private)", **raw)
    norms.plot(epochs, values["clip_norm"], label="clipping norm", **style)
    drawn = [values.get(name, ()) for name in ("clip_norm", "gradient_norm")]
    scale_norms(norms, np.concatenate(drawn))
    norms.set_ylabel("clipping norm (L2)")

    if "clipped_fraction" in values:
        unclipped = 1.0 - np.asarray(values["clipped_fraction"])
        shares.plot(epochs, unclipped, label="true mean (not private)", **raw)
    noised = np.asarray(values["unclipped_fraction"])
    shares.plot(epochs, noised, label="noised, last step", **style)
    label = f"target: {target:g}"
    shares.axhline(target, color=ORANGE, linestyle="--", linewidth=2, label=label)
    shares.set_ylim(*_limits(noised))
    shares.set_ylabel("share of units that are not clipped")
    for axes in (norms, shares):
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
    if "gradient_norm" in values:
        norms.legend(frameon=False)
    shares.legend(frameon=False)
    return finished(figure, path, title)


def _limits(shares: np.ndarray) -> tuple[float, float]:
    """From 0 to 1, or as far as the noise has taken a share."""
    finite = shares[np.isfinite(shares)]
    least, greatest = (finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)
    return float(np.fmin(0.0, least - 0.05)), float(np.fmax(1.0, greatest + 0.05))
