"""The noise multiplier of the event that a query reports.

Gaussian mechanisms on the same clients are one Gaussian mechanism: with noise multipliers z_k,

    z = (sum_k z_k^-2)^(-1/2)

since each sum, divided by its sensitivity, is a coordinate of one vector that moves by at most
sqrt(K), and scaling each by its noise leaves N(0, I). So the ledger composes, under Poisson
sampling, `PoissonSampledDpEvent(q, ComposedDpEvent([GaussianDpEvent(z_k), ...]))`, as one
`PoissonSampledDpEvent(q, GaussianDpEvent(z))`: exactly, and for every accountant.

Any other event (Laplace, sampling inside of a query, an unsupported event) is not a Gaussian
mechanism, and is not accounted: epsilon is then infinite.
"""

from collections.abc import Iterator
from typing import Any

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from keras import ops

Tensor = Any


def noise_of_event(event: DpEvent) -> Tensor | None:
    """Return the noise multiplier of the Gaussian mechanism that is equivalent to an event.

    Args:
        event: an event of one round; its numbers may be tensors of a graph.

    Returns:
        A float32 scalar, 0 for a release without noise; None if there is no such mechanism.
    """
    gaussians = list(_gaussians(event))
    if not gaussians or any(noise is None for noise, _ in gaussians):
        return None
    noises = ops.stack([ops.cast(noise, "float32") for noise, _ in gaussians])
    counts = ops.stack([ops.cast(count, "float32") for _, count in gaussians])
    # Relative to the least noise, so that no square overflows; without noise, the result is 0.
    least = ops.min(noises)
    shares = ops.where(least > 0.0, least / noises, ops.ones_like(noises))
    return least / ops.sqrt(ops.sum(counts * ops.square(shares)))


def _gaussians(event: DpEvent, count: Any = 1) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a noise multiplier, None if unknown, and a number of releases."""
    if isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _gaussians(part, count)
    elif isinstance(event, SelfComposedDpEvent):
        yield from _gaussians(event.event, event.count * count)
    elif isinstance(event, GaussianDpEvent):
        yield event.noise_multiplier, count
    elif isinstance(event, NonPrivateDpEvent):
        yield 0.0, count
    elif not isinstance(event, NoOpDpEvent):
        yield None, count
