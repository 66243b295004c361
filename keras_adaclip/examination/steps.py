"""Examines a model at the shapes of its steps, once for what is compiled."""

from collections.abc import Iterable
from typing import Any

import keras

from keras_adaclip.examination.comparisons import Examination
from keras_adaclip.examination.issues import Finding, issues_of_clients, refuse
from keras_adaclip.examination.rows import SampleRows

# By owner (a model or an augmentation), number of rows, and whether that number must not matter.
Findings = dict[tuple[int, int, bool], Finding]


def examine(
    model: keras.Model,
    sample: SampleRows,
    sizes: Iterable[int],
    known: Findings,
    counts_rows: bool = False,
    is_exact: bool = False,
    owner: Any = None,
) -> None:
    """Examine a model with batches of some sizes, and keep what is found.

    Args:
        model: A built private or federated model, or an augmentation as a model.
        sample: Makes the rows up.
        sizes: Numbers of rows that pass through the model at a time.
        known: What was found for the steps as they are compiled now; gets what is found here.
        counts_rows: Whether the output for a row must not depend on the number of rows.
        is_exact: Whether a size counts as examined only if exactly it was; otherwise one of about
            the same size is enough.
        owner: The object for which the model stands; None for the model.

    Raises:
        ValueError: With every issue, one a line.
    """
    unit, owner = getattr(model, "privacy_unit", ""), id(owner or model)
    for size in sorted({max(size, 2) for size in sizes}, reverse=True):
        close = [
            other
            for number, other, counted in known
            if (number, counted) == (owner, counts_rows)
            and (other == size if is_exact else other <= 2 * size and size <= 2 * other)
        ]
        if not close:
            with_loss = unit == "example"
            finding = Examination(model, sample, size, with_loss, counts_rows).finding()
            issues = issues_of_clients(finding) if unit == "client" else finding.issues
            refuse(model, issues)
            known[owner, size, counts_rows] = finding
