"""Accuracy, epsilon and clipping norm by epoch."""

from pathlib import Path
from typing import Any

from keras_adaclip.plots.canvas import BLUE, GREEN, ORANGE, finished, panels

_COLOURS = {"training": BLUE, "validation": ORANGE, "single": GREEN}


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
    values: dict[str, list[float]] = getattr(history, "history", history)
    values = {name: list(curve) for name, curve in values.items() if len(curve) > 0}
    shown = _panels(values)
    if not shown:
        raise ValueError("The history holds no epoch to plot.")
    figure, all_axes = panels(len(shown))
    for axes, (label, curves) in zip(all_axes, shown, strict=True):
        for name, (key, colour) in curves.items():
            epochs = _epochs_of(len(values[key]), _num_epochs(values))
            axes.plot(epochs, values[key], label=name, color=_COLOURS[colour], linewidth=2)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(frameon=False)
    return finished(figure, path, title)


def _panels(values: dict[str, list[float]]) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Axis label and curves of each panel, for what the history holds."""
    found = []
    score = next((key for key in values if "accuracy" in key and not key.startswith("val_")), None)
    score = score or ("loss" if values.get("loss") else None)
    if score is not None:
        curves = {"training (not private)": (score, "training")}
        if f"val_{score}" in values:
            curves["validation"] = (f"val_{score}", "validation")
        found.append((score.replace("_", " "), curves))
    if "epsilon" in values:
        curves = {"at most, by the accountant": ("epsilon", "single")}
        if "audit_epsilon" in values:
            curves["at least, by the audit"] = ("audit_epsilon", "validation")
        found.append(("epsilon spent", curves))
    if "clip_norm" in values:
        found.append(("clipping norm", {"clip norm": ("clip_norm", "single")}))
    return found


def _num_epochs(values: dict[str, list[float]]) -> int:
    return max(len(curve) for curve in values.values())


def _epochs_of(num_values: int, num_epochs: int) -> list[int]:
    """The epochs of a curve; fewer values than epochs come from `validation_freq`."""
    spacing = num_epochs // num_values
    return [spacing * (number + 1) for number in range(num_values)]
