"""A mechanism that ran, as a report shows it."""

import dataclasses
from typing import Self

from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.rows import LedgerRow


@dataclasses.dataclass(frozen=True)
class ReportedMechanism:
    """One row of the ledger, in a report.

    Args:
        sampling: label of the `Sampling`.
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
        is_amplified = row.sampling in (Sampling.POISSON, Sampling.FIXED)
        return cls(
            row.sampling.label,
            row.expected_batch_size,
            row.num_examples,
            row.sampling_probability if is_amplified else None,
            row.noise_multiplier,
            row.steps,
            row.releases,
        )

    def __str__(self) -> str:
        size = f"{self.num_examples:,}" if self.num_examples else "unknown many"
        parts = [f"{self.steps:,} steps", f"batches of {self.expected_batch_size:,} of {size}"]
        if self.sampling_probability is not None:
            parts.append(f"q = {self.sampling_probability:.4g}")
        parts.append(f"z = {self.noise_multiplier:.6g}")
        if self.releases != self.steps:
            parts.append(f"{self.releases:,} releases")
        return f"{self.sampling}: {', '.join(parts)}"
