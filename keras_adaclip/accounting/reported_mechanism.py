"""A row of the ledger, as reports show it."""

import dataclasses
from typing import Self

from keras_adaclip.accounting.row import LedgerRow

SELECTED = "selected"


@dataclasses.dataclass(frozen=True)
class ReportedMechanism:
    """One row of the ledger, in a report.

    Args:
        sampling: Label of the `Sampling`; `"selected"` for the best of several runs. Noise and
            batch size are then those of the run with the least noise.
        expected_batch_size: Expected number of units in a step.
        num_examples: Number of units in the data, 0 if unknown.
        sampling_probability: Probability of each unit at each step; None if the sampling does not
            amplify.
        noise_multiplier: Standard deviation of the noise over the clipping norm, in total.
        steps: Steps that ran.
        releases: Releases that they count as.
        max_batch_size: Most units in a step of truncated Poisson sampling, 0 otherwise.
    """

    sampling: str
    expected_batch_size: int
    num_examples: int
    sampling_probability: float | None
    noise_multiplier: float
    steps: int
    releases: int
    max_batch_size: int = 0

    @classmethod
    def of(cls, row: LedgerRow) -> Self:
        """The row, as a report shows it."""
        is_amplified = row.sampling.is_amplified and row.selection is None
        return cls(
            row.sampling.label if row.selection is None else SELECTED,
            row.expected_batch_size,
            row.num_examples,
            row.sampling_probability if is_amplified else None,
            row.noise_multiplier,
            row.steps,
            row.releases,
            row.max_batch_size,
        )

    def in_words(self, unit: str = "example") -> str:
        """The mechanism in a line.

        Args:
            unit: The unit of privacy, `"example"` or `"client"`.
        """
        drawn = "cohorts" if unit == "client" else "batches"
        size = f"{self.num_examples:,}" if self.num_examples else "unknown many"
        most = f" (at most {self.max_batch_size:,})" if self.max_batch_size else ""
        q, releases = self.sampling_probability, self.releases
        return (
            f"{self.sampling}: {self.steps:,} step{'s' * (self.steps != 1)}, {drawn} of "
            f"{self.expected_batch_size:,}{most} of {size}{'' if q is None else f', q = {q:.4g}'}, "
            f"z = {self.noise_multiplier:.6g}"
            f"{'' if releases == self.steps else f', {releases:,} releases'}"
        )
