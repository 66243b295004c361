"""A figure with panels side by side: its axes, their labels, and its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip._checks import check_positive

# The colours of Okabe and Ito, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Dots per inch of a figure, unless the caller says otherwise.
DPI = 120
# Above this factor small norms could not be told apart on a linear axis.
_WIDE = 10.0


class Canvas:
    """A new figure with panels side by side, or axes that the caller has.

    Args:
        names: The names of the panels, for an error message.
        ax: The axes of the caller, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file.
        width: The width of each panel of a new figure, in inches.

    Attributes:
        figure: The figure of matplotlib.
        axes: The axes of the panels, from left to right.
        is_new: Whether the figure was made here.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes, or `dpi` is no number.
        ValueError: If `ax` has another number of axes than there are panels, or `dpi` is not
            positive.
    """

    def __init__(self, names: Sequence[str], ax: Any, dpi: float, width: float = 4.0) -> None:
        try:
            from matplotlib.axes import Axes
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(
                "matplotlib is needed for `keras_adaclip.plots`: pip install keras-adaclip[plots]"
            ) from error
        self._dpi = check_positive("dpi", dpi)
        self.is_new = ax is None
        if self.is_new:
            figure = Figure((width * len(names), 3.4), self._dpi, layout="constrained")
            ax = figure.subplots(1, len(names))
        self.axes = list(np.ravel(np.asarray(ax, object)))
        if strangers := [each for each in self.axes if not isinstance(each, Axes)]:
            raise TypeError(
                "Argument `ax` must be matplotlib axes, or a sequence of them. "
                f"Received: ax={strangers[0]!r}"
            )
        if len(self.axes) != len(names):
            raise ValueError(
                f"Argument `ax` must have {len(names)} axes, one for each panel "
                f"({', '.join(names)}): `figure, ax = plt.subplots(1, {len(names)})`. "
                f"Received: ax with {len(self.axes)} axes"
            )
        # The axes of a subfigure belong to the canvas of the whole figure.
        self.figure: Any = self.axes[0].figure.canvas.figure

    def finish(self, path: str | Path | None, title: str | None, default: str) -> Any:
        """Return the figure with its title, written to its file.

        Args:
            path: The file, PNG, PDF or SVG by its suffix; None writes none.
            title: The title; None takes the default one for a new figure, and none for axes of the
                caller, above whose first panel a title is written.
            default: The default title.
        """
        if self.is_new:
            self.figure.suptitle(default if title is None else title)
        elif title is not None:
            self.axes[0].set_title(title)
        if path is not None:
            self.figure.savefig(path, dpi=self._dpi)
        return self.figure


def label(axes: Any, x: str, y: str) -> None:
    """Label the axes of a panel, whose horizontal axis counts, and draw its grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def scale_norms(axes: Any, norms: np.ndarray) -> None:
    """Make the vertical axis logarithmic if norms differ by more than a factor of ten.

    Args:
        axes: The axes.
        norms: All norms that are drawn there.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    shown = norms[np.isfinite(norms) & (norms > 0)]
    if len(shown) and shown.max() > _WIDE * shown.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0.0)
