"""What a ledger row is about: whose privacy, and how the units were drawn."""

import enum


class Unit(enum.IntEnum):
    """Whose privacy a row is about. Rows of both kinds do not add up to an epsilon for either."""

    EXAMPLE = 0
    CLIENT = 1

    @property
    def label(self) -> str:
        """The name in lower case."""
        return self.name.lower()


class Sampling(enum.IntEnum):
    """How the units of a step were drawn; 0 is left to mean an empty row.

    `POISSON`: each unit independently, with the same probability at every step.
    `SHUFFLE`: batches of a shuffled pass over the data; a pass is one release.
    `STREAM`: batches of unknown making, each unit at most once in each; a step is one release.
    `PASS`: batches of unknown making, each unit at most once a pass, which is one release.
    `FIXED`: exactly so many units, drawn without replacement at each step, which is one release.
    """

    POISSON = 1
    SHUFFLE = 2
    STREAM = 3
    PASS = 4
    FIXED = 5

    @property
    def label(self) -> str:
        """The name in lower case, as `fit(sampling=...)` takes it."""
        return self.name.lower()

    @property
    def is_counted_in_passes(self) -> bool:
        """Whether a release is a pass over the data, and not a step."""
        return self in (Sampling.SHUFFLE, Sampling.PASS)

    def describe(self) -> str:
        """What the sampling is, and what is counted, in words for a report."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Sampling.POISSON: "Poisson sampling: every unit is drawn independently at each step",
    Sampling.SHUFFLE: "shuffled passes over the data: one full release a pass, no amplification",
    Sampling.STREAM: "batches of unknown making: one full release a step, no amplification",
    Sampling.PASS: (
        "batches of which the user says that no unit comes twice in a pass: one full release a "
        "pass, no amplification"
    ),
    Sampling.FIXED: "fixed-size sampling: as many units at each step, drawn without replacement",
}
