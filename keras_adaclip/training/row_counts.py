"""Examines whether what a layer returns for a row depends on how many rows a batch has."""

from typing import Any

import numpy as np

from keras_adaclip.backend import keras_private
from keras_adaclip.training.comparing import are_close, first_difference
from keras_adaclip.training.findings import ALONE, COUNTS, OwnLoss, issue_with
from keras_adaclip.training.probe import SPREADS, Probe


def examined_row_counts(few: Probe, many: Probe) -> list[tuple[str, str, str]]:
    """Issues with what depends on the number of rows, at several states of the variables.

    Args:
        few: a probe of few rows.
        many: a probe of the same model in the same mode, of more rows.
    """
    generator = np.random.default_rng(many.traced.size)
    for state in range(len(SPREADS)):
        try:
            issues = _issues_at(few, many, many.values_at(state, generator), state, generator)
        except Exception:
            # Not every value is one that a variable can have.
            if state == 0:
                raise
            continue
        if issues:
            return issues
    return []


def row_counts_now(few: Probe, many: Probe, number: int) -> list[tuple[str, str, str]]:
    """`examined_row_counts` with the variables as they are.

    Args:
        few: a probe of few rows.
        many: a probe of the same model in the same mode, of more rows.
        number: another number gives other random numbers.
    """
    values = [variable.value for variable in many.traced.variables]
    generator = np.random.default_rng([many.traced.size, number])
    return _issues_at(few, many, values, number, generator)


def _issues_at(
    few_rows: Probe,
    many_rows: Probe,
    values: list[Any],
    state: int,
    generator: np.random.Generator,
) -> list[tuple[str, str, str]]:
    """Issues with layers that return something else for the first rows alone."""
    few, many = few_rows.traced, many_rows.traced
    if len(few.variables) != len(many.variables):  # some are known since a pass showed them
        few.variables = list(many.variables)
        few.renew_evaluators()
    further, moved = (values, many.seed_values(state)), (values, many.seed_values(state + 1))
    # A difference is looked at again on other rows: rounding may decide close by a threshold.
    for _ in range(2):
        rows = many.rows(SPREADS[state % len(SPREADS)], generator)
        first_rows = [each[: few.size] for each in rows[: len(few.examples)]]
        outputs = many.forward(rows, further)[0]
        alone = few.forward(first_rows, further)[0]
        others = few.forward(first_rows, moved)[0] if many.seeds else alone
        # Behind a layer that draws random numbers, rows of another number are another draw.
        layers = few.layers
        drawn = first_difference(alone, others, True)
        if many.training:  # where two draws happen to be alike too
            drawing = [bool(keras_private.seed_generator_states(each)) for each in layers]
            first = drawing.index(True) if True in drawing else len(layers)
            drawn = min(first, len(layers) if drawn is None else drawn)
        own = [layer for layer in many.layers if not isinstance(layer, OwnLoss)]
        outputs = outputs[: len(own)]
        if layers != own:  # What has as many entries as there are rows is not known.
            if drawn not in (None, len(layers)):
                return []
            layers, outputs, alone = layers[-1:], outputs[-1:], alone[-1:]
        compared = zip(layers, alone[:drawn], outputs, strict=False)
        differing = [
            layer
            for layer, one, other in compared
            if len(one) == few.size and not are_close(one, other[: few.size])
        ]
        if not differing:
            return []
    return [issue_with(many.model, differing[0], COUNTS, ALONE)]
