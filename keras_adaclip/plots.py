"""Figures of private training."""

from pathlib import Path
from typing import Any

_COLOURS = {"training": "#0072B2", "validation": "#D55E00", "single": "#009E73"}


def history(history: Any, path: str | Path | None = None, title: str | None = None) -> Any:
    """Accuracy (or loss), epsilon and clipping norm by epoch, one panel each.

    Args:
        history: what `fit` returned, or its `history` dict.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
        ValueError: where the history is empty.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed for `keras_adaclip.plots`: pip install keras-adaclip[plots]"
        ) from error
    values: dict[str, list[float]] = getattr(history, "history", history)
    values = {name: list(curve) for name, curve in values.items() if len(curve) > 0}
    panels = _panels(values)
    if not panels:
        raise ValueError("The history holds no epoch to plot.")
    figure = Figure(figsize=(4.0 * len(panels), 3.4), layout="constrained")
    for axes, (label, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for name, (key, colour) in curves.items():
            epochs = _epochs_of(len(values[key]), _num_epochs(values))
            axes.plot(epochs, values[key], label=name, color=_COLOURS[colour], linewidth=2)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(frameon=False)
    if title is not None:
        figure.suptitle(title)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _panels(values: dict[str, list[float]]) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Axis label and curves of each panel, for what the history holds."""
    panels = []
    score = next((key for key in values if "accuracy" in key and not key.startswith("val_")), None)
    score = score or ("loss" if values.get("loss") else None)
    if score is not None:
        curves = {"training (not private)": (score, "training")}
        if f"val_{score}" in values:
            curves["validation"] = (f"val_{score}", "validation")
        panels.append((score.replace("_", " "), curves))
    if "epsilon" in values:
        panels.append(("epsilon spent", {"epsilon": ("epsilon", "single")}))
    if "clip_norm" in values:
        panels.append(("clipping norm", {"clip norm": ("clip_norm", "single")}))
    return panels


def _num_epochs(values: dict[str, list[float]]) -> int:
    return max(len(curve) for curve in values.values())


def _epochs_of(num_values: int, num_epochs: int) -> list[int]:
    """The epochs of a curve; fewer values than epochs come from `validation_freq`."""
    spacing = num_epochs // num_values
    return [spacing * (number + 1) for number in range(num_values)]
