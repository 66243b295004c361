"""A figure with panels side by side, and how it ends."""

from pathlib import Path
from typing import Any

# Okabe & Ito's colours, which colour-blind readers tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"


def panels(number: int) -> tuple[Any, list[Any]]:
    """A new figure and its axes, from left to right.

    Args:
        number: of panels.

    Raises:
        ImportError: where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed for `keras_adaclip.plots`: pip install keras-adaclip[plots]"
        ) from error
    figure = Figure(figsize=(4.0 * number, 3.4), layout="constrained")
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def finished(figure: Any, path: str | Path | None, title: str | None) -> Any:
    """The figure with its title, written where it should be.

    Args:
        figure: of matplotlib.
        path: file, PNG, PDF or SVG by its suffix; None writes none.
        title: of the whole; None means none.
    """
    if title is not None:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
