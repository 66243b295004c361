"""Plain-NumPy definitions of what the package computes, written without Keras and in float64."""

import numpy as np


def clip_factors(norms, clip_norm):
    """`min(1, clip_norm / norm)`; one at zero, zero where the norm is not finite."""
    factors = [0.0 if not np.isfinite(n) else min(1.0, clip_norm / n) if n else 1.0 for n in norms]
    return np.array(factors)


def gradient_norms(gradients):
    """Norms of per-example gradients, given as arrays of shape `(batch_size, ...)`."""
    squares = [
        np.sum(np.square(g.reshape(len(g), -1), dtype=np.float64), axis=1) for g in gradients
    ]
    return np.sqrt(np.sum(squares, axis=0))


def clipped_sums(gradients, clip_norm):
    """The sums over the batch of clipped per-example gradients."""
    factors = clip_factors(gradient_norms(gradients), clip_norm)
    return [np.tensordot(factors, np.asarray(g, np.float64), axes=1) for g in gradients]


def mean_norm_update(clip_norm, norms, factor, bound_factor, expected_units, noise=0.0):
    """The next clipping norm (van der Veen et al. 2018); `noise` in units of the bound."""
    bound = bound_factor * clip_norm
    total = sum(min(norm, bound) - bound / 2 for norm in norms) + noise * bound
    return factor * (total / expected_units + bound / 2)


def slots(norm, clip_norm, num_slots):
    """Slots (Zou et al. 2026), filled one after another with `(C - n) sqrt(K)` in all."""
    capacity = clip_norm / np.sqrt(num_slots)
    left, filled = max(clip_norm - norm, 0.0) * np.sqrt(num_slots), []
    for _ in range(num_slots):
        filled.append(min(left, capacity))
        left -= filled[-1]
    return np.array(filled)


def group_stddevs(allocation, noise_multiplier, clip_norms, sizes):
    """Noise of each group (Thakkar et al. 2019, section 2; McMahan et al. 2018)."""
    clip_norms, sizes = np.asarray(clip_norms, np.float64), np.asarray(sizes, np.float64)
    if allocation == "proportional":
        return noise_multiplier * np.sqrt(len(sizes)) * clip_norms
    if allocation == "optimal":
        total = np.sum(clip_norms * np.sqrt(sizes))
        return noise_multiplier * np.sqrt(clip_norms / np.sqrt(sizes) * total)
    return np.full(len(sizes), noise_multiplier * np.sqrt(np.sum(clip_norms**2)))


class AdaClip:
    """AdaClip over flat vectors (Pichapati et al. 2019), one step after another."""

    def __init__(self, size, beta1, beta2, min_variance, max_variance):
        self.beta1, self.beta2 = beta1, beta2
        self.floor, self.ceiling = min_variance, max_variance
        self.centre = np.zeros(size)
        self.variance = np.full(size, np.sqrt(min_variance * max_variance))

    @property
    def scale(self):
        stddev = np.sqrt(self.variance)
        return np.sqrt(stddev * stddev.sum())

    def contributions(self, gradients):
        """What each unit adds, in the scaled coordinates: shape `(units, size)`."""
        scaled = (gradients - self.centre) / self.scale
        norms = np.linalg.norm(scaled, axis=1, keepdims=True)
        return np.where(np.isfinite(norms), scaled / np.maximum(norms, 1.0), 0.0)

    def step(self, gradients, noise, noise_multiplier, expected_units):
        """The noisy mean of gradients `(units, size)`; centre and variance move on."""
        scale, centre = self.scale, self.centre
        mean = (self.contributions(gradients).sum(axis=0) + noise) / expected_units
        gradient = centre + scale * mean
        of_noise = (scale * noise_multiplier / expected_units) ** 2
        seen = np.clip((gradient - centre) ** 2 - of_noise, self.floor, self.ceiling)
        self.variance = self.beta2 * self.variance + (1 - self.beta2) * seen
        self.centre = self.beta1 * centre + (1 - self.beta1) * gradient
        return gradient


def linear_decay(step, initial_value, total_steps):
    """Yu et al. 2018: the initial value over a divisor that grows from one to two."""
    return initial_value / (2.0 if step >= total_steps else 1.0 + step / total_steps)


def exponential_decay(step, initial_value, decay_rate, total_steps):
    """Du et al. 2021: one division by the rate every `total_steps` steps."""
    return initial_value * np.float64(decay_rate) ** (-step / total_steps)


def power_decay(step, initial_value, power, steps_per_epoch):
    """Lin et al. 2022, equation 11; the epoch is found by counting."""
    epoch = len(range(0, step + 1, steps_per_epoch))
    return initial_value / np.power(np.float64(epoch), power)


def piecewise_constant(step, values, steps_per_epoch):
    """One value an epoch, the last one held."""
    epoch = len(range(0, step + 1, steps_per_epoch))
    return values[epoch - 1] if epoch <= len(values) else values[-1]
