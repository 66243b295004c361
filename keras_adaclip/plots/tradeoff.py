"""What an attacker can find out: true over false positive rates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.accounting import TradeoffCurve
from keras_adaclip.audit import OneRunAudit
from keras_adaclip.plots.history import _DPI, _panels

_LEAST_RATE = 1e-4


def tradeoff(
    curves: Mapping[str, TradeoffCurve],
    path: str | Path | None = None,
    title: str = "The most that an attacker finds",
    *,
    audit: OneRunAudit | None = None,
    ax: Any = None,
    dpi: float = _DPI,
) -> Any:
    """Draw the most members that an attacker finds, over the share of others they accuse.

    Args:
        curves: Curves as `PrivacySpent.tradeoff` returns them, by label.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title.
        audit: An audit, whose attack on the canaries is drawn as points, with its lower bound on
            epsilon; None for none. It is not private.
        ax: Axes of matplotlib to draw on; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If `ax` is not one axes, or `dpi` is out of range.

    Example:

    >>> curve = TradeoffCurve(epsilons=(1.0,), deltas=(1e-5,))
    >>> figure = tradeoff({"epsilon 1": curve})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['epsilon 1', 'a blind guess']
    """
    (axes,), figure = _panels(["rates"], ax, dpi)
    rates = np.geomspace(_LEAST_RATE, 1.0, 500)
    for label, curve in curves.items():
        axes.plot(rates, curve.true_positive_rate(rates), label=label, linewidth=2)
    if audit is not None:
        members = audit.is_member[np.argsort(audit.scores)[::-1]]
        found, accused = np.cumsum(members) / members.sum(), np.cumsum(~members) / (~members).sum()
        bound = max(audit.epsilon_lower_bound, getattr(audit, "family_lower_bound", 0.0))
        label = f"the attack of the audit: epsilon at least {bound:.3g}"
        axes.plot(accused, found, ".", markersize=3, color="black", label=label)
    axes.plot(rates, rates, label="a blind guess", color="grey", linestyle="--")
    words = {
        "xlabel": "false positive rate: others accused",
        "ylabel": "true positive rate: members found",
    }
    axes.set(xscale="log", yscale="log", title=title, **words)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")
    if path is not None:
        figure.savefig(path, dpi=dpi)
    return figure
