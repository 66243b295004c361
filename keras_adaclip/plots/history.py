"""Accuracy, epsilon and clipping norm by epoch."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.plots.canvas import BLUE, GREEN, ORANGE, finished, label, panels


def history(history: Any, path: str | Path | None = None, title: str | None = None) -> Any:
    """Draw accuracy (or loss), epsilon and clipping norm by epoch, one panel each.

    Args:
        history: The `History` that `fit` returned, or its dict.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the history is empty.
    """
    values = getattr(history, "history", history)
    values = {name: list(curve) for name, curve in values.items() if len(curve) > 0}
    scores = [name for name in values if "accuracy" in name and not name.startswith("val_")]
    score = [*scores, "loss"][0]
    # The label of each panel, with the name, label and colour of its curves.
    layout = {
        score.replace("_", " "): [
            (score, "training (not private)", BLUE),
            (f"val_{score}", "validation", ORANGE),
        ],
        "epsilon spent": [
            ("epsilon", "at most, by the accountant", GREEN),
            ("audit_epsilon", "at least, by the audit", ORANGE),
        ],
        "clipping norm": [("clip_norm", "clip norm", GREEN)],
    }
    layout = {name: curves for name, curves in layout.items() if curves[0][0] in values}
    if not layout:
        raise ValueError("The history holds no epoch to plot.")
    num_epochs = max(len(curve) for curve in values.values())
    figure, all_axes = panels(len(layout))
    for axes, (name, curves) in zip(all_axes, layout.items(), strict=True):
        for key, words, colour in curves:
            if key in values:
                # Fewer values than epochs come from `validation_freq`.
                epochs = np.arange(1, len(values[key]) + 1) * (num_epochs // len(values[key]))
                axes.plot(epochs, values[key], label=words, color=colour, linewidth=2)
        label(axes, "epoch", name, legend=len(axes.lines) > 1)
    return finished(figure, path, title)
