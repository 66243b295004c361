"""A figure with panels side by side: its axes, their labels, and its file."""

from pathlib import Path
from typing import Any

import numpy as np

# The colours of Okabe and Ito, which colour-blind readers tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Above this factor small norms could not be told apart on a linear axis.
_WIDE = 10.0


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of the curve with a number, from 0, as arguments of matplotlib."""
    dashes, colour = divmod(number, len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": ("-", "--", ":")[dashes % 3], "linewidth": 2}


def panels(number: int, width: float = 4.0) -> tuple[Any, list[Any]]:
    """Return a new figure and its axes, from left to right.

    Args:
        number: The number of panels.
        width: The width of each panel, in inches.

    Raises:
        ImportError: If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed for `keras_adaclip.plots`: pip install keras-adaclip[plots]"
        ) from error
    figure = Figure(figsize=(width * number, 3.4), layout="constrained")
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def label(axes: Any, x: str, y: str, *, integers: bool = True, legend: bool = True) -> None:
    """Label the axes of a panel, and draw its grid.

    Args:
        axes: The axes.
        x: The label of the horizontal axis.
        y: The label of the vertical axis.
        integers: Whether the horizontal axis counts.
        legend: Whether the panel has a legend.
    """
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if integers:
        axes.locator_params(axis="x", integer=True)
    if legend:
        axes.legend(frameon=False)


def scale_norms(axes: Any, norms: np.ndarray) -> None:
    """Make the vertical axis logarithmic if norms differ by more than a factor of ten.

    Args:
        axes: The axes.
        norms: All norms that are drawn there.
    """
    from matplotlib.ticker import StrMethodFormatter

    shown = norms[np.isfinite(norms) & (norms > 0)]
    if len(shown) and shown.max() > _WIDE * shown.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.set_ylim(bottom=0.0)


def finished(figure: Any, path: str | Path | None, title: str | None) -> Any:
    """Return the figure with its title, written to its file.

    Args:
        figure: A figure of matplotlib.
        path: The file, PNG, PDF or SVG by its suffix; None writes none.
        title: The title of the figure; None means none.
    """
    if title is not None:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
