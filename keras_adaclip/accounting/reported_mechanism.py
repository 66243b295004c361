"""A mechanism that ran, as a report shows it."""

import dataclasses
from typing import Self

from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.rows import LedgerRow

SELECTED = "selected"


@dataclasses.dataclass(frozen=True)
class ReportedMechanism:
    """One row of the ledger, in a report.

    Args:
        sampling: label of the `Sampling`; `"selected"` for the best of several runs, where noise
            and batches are those of the run with the least noise.
        expected_batch_size: expected number of units in a step.
        num_examples: number of units in the data, 0 where unknown.
        sampling_probability: of each unit at each step; None where sampling amplifies nothing.
        noise_multiplier: standard deviation of the noise over the clipping norm, in all.
        steps: steps that ran.
        releases: releases that they count as.
    """

    sampling: str
    expected_batch_size: int
    num_examples: int
    sampling_probability: float | None
    noise_multiplier: float
    steps: int
    releases: int

    @classmethod
    def of(cls, row: LedgerRow) -> Self:
        """The row, as a report shows it."""
        is_selected = row.selection is not None
        is_amplified = row.sampling in (Sampling.POISSON, Sampling.FIXED) and not is_selected
        return cls(
            SELECTED if is_selected else row.sampling.label,
            row.expected_batch_size,
            row.num_examples,
            row.sampling_probability if is_amplified else None,
            row.noise_multiplier,
            row.steps,
            row.releases,
        )

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, unit: str = "example") -> str:
        """The mechanism in a line.

        Args:
            unit: whose privacy it is, `"example"` or `"client"`.
        """
        drawn = "cohorts" if unit == "client" else "batches"
        size = f"{self.num_examples:,}" if self.num_examples else "unknown many"
        parts = [f"{self.steps:,} steps", f"{drawn} of {self.expected_batch_size:,} of {size}"]
        if self.sampling_probability is not None:
            parts.append(f"q = {self.sampling_probability:.4g}")
        parts.append(f"z = {self.noise_multiplier:.6g}")
        if self.releases != self.steps:
            parts.append(f"{self.releases:,} releases")
        return f"{self.sampling}: {', '.join(parts)}"
