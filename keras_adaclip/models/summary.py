"""The table of a model's layers and the ways that their gradients take."""

from collections.abc import Sequence
from textwrap import fill

import keras

from keras_adaclip.gradients import Batch, GradientPlan, LayerReport, layer_reports

_TITLES = ("Layer", "Rule", "Norms", "Memory")
_WIDTHS = (33, 22, 15, 10)


def summary(model: keras.Model, rows: Batch, plan: GradientPlan, rows_at_a_time: int | None) -> str:
    """The table, and what the whole takes.

    Args:
        model: a built model.
        rows: a few examples, for shapes.
        plan: the model's plan.
        rows_at_a_time: how many examples are processed at a time, None where that is not known.
    """
    ways = layer_reports(model, rows, plan)
    if plan.is_layerwise:
        text = "All examples at once, layer by layer."
    else:
        text = one_after_another(plan.looped_reason)
    if not plan.is_layerwise or any(way.bytes_per_example is None for way in ways):
        return f"{as_table(ways)}\n\n{text}"
    held = sum(way.bytes_per_example or 0 for way in ways)
    text += f"\nBetween norms and sums an example takes {as_bytes(held)}"
    if rows_at_a_time is not None:
        text += f", {rows_at_a_time:,} at a time {as_bytes(rows_at_a_time * held)}"
    return f"{as_table(ways)}\n\n{text}."


def one_after_another(reason: str | None) -> str:
    """Says that each example is differentiated alone, and why."""
    return fill(f"One example after another, which is slow: {reason}.", 80)


def as_table(ways: Sequence[LayerReport]) -> str:
    """The ways, a layer a line, 80 columns wide.

    Args:
        ways: those of a model's layers.
    """
    lines = [_TITLES] + [
        (
            f"{way.layer} ({way.kind})" if way.kind else way.layer,
            way.rule.split(" (")[0].removesuffix("Rule"),
            way.norms,
            as_bytes(way.bytes_per_example),
        )
        for way in ways
    ]
    return "\n".join(_line(cells) for cells in lines)


def as_bytes(number: int | None) -> str:
    """A number of bytes in the largest unit of which there is at least one."""
    if number is None:
        return "by length"
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024.0:
            return f"{value:.3g} {unit}"
        value /= 1024.0
    return f"{value:.3g} GiB"


def _line(cells: Sequence[str]) -> str:
    shortened = [
        cell if len(cell) < width else f"{cell[: width - 2]}…"
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    return "".join(
        f"{cell:<{width}}" for cell, width in zip(shortened, _WIDTHS, strict=True)
    ).rstrip()
