"""Plain-NumPy definitions of what the package computes, written without Keras and in float64.

Small nets are lists of blocks. A block works on one example: `forward` keeps what `backward`
needs, and `backward` returns the gradient by its input and those by its weights.
"""

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
        """The noisy mean gradient; centre and variance move on.

        Args:
            gradients: of shape `(units, size)`.
            noise: of shape `(size,)`, with standard deviation `noise_multiplier`.
        """
        scale, centre = self.scale, self.centre
        mean = (self.contributions(gradients).sum(axis=0) + noise) / expected_units
        gradient = centre + scale * mean
        of_noise = (scale * noise_multiplier / expected_units) ** 2
        seen = np.clip((gradient - centre) ** 2 - of_noise, self.floor, self.ceiling)
        self.variance = self.beta2 * self.variance + (1 - self.beta2) * seen
        self.centre = self.beta1 * centre + (1 - self.beta1) * gradient
        return gradient


class Dense:
    def __init__(self, kernel, bias):
        self.kernel, self.bias = kernel, bias

    def forward(self, x):
        self.x = x
        return x @ self.kernel + self.bias

    def backward(self, dy):
        rows, cotangents = self.x.reshape(-1, self.x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return dy @ self.kernel.T, [rows.T @ cotangents, cotangents.sum(axis=0)]


class Tanh:
    def forward(self, x):
        self.y = np.tanh(x)
        return self.y

    def backward(self, dy):
        return dy * (1.0 - self.y**2), []


class Flatten:
    def forward(self, x):
        self.shape = x.shape
        return x.reshape(-1)

    def backward(self, dy):
        return dy.reshape(self.shape), []


class MeanOverPositions:
    def forward(self, x):
        self.positions = len(x)
        return x.mean(axis=0)

    def backward(self, dy):
        return np.tile(dy / self.positions, (self.positions, 1)), []


class Conv2D:
    """No padding; channels last."""

    def __init__(self, kernel, bias, stride=1):
        self.kernel, self.bias, self.stride = kernel, bias, stride

    def _windows(self):
        height, width = self.kernel.shape[:2]
        for row in range((self.x.shape[0] - height) // self.stride + 1):
            for column in range((self.x.shape[1] - width) // self.stride + 1):
                top, left = row * self.stride, column * self.stride
                yield row, column, (slice(top, top + height), slice(left, left + width))

    def forward(self, x):
        self.x = x
        values = {
            (row, column): np.tensordot(x[window], self.kernel, axes=3) + self.bias
            for row, column, window in self._windows()
        }
        last_row, last_column = max(values)
        return np.array(
            [
                [values[row, column] for column in range(last_column + 1)]
                for row in range(last_row + 1)
            ]
        )

    def backward(self, dy):
        dx, dkernel = np.zeros_like(self.x), np.zeros_like(self.kernel)
        for row, column, window in self._windows():
            dx[window] += self.kernel @ dy[row, column]
            dkernel += self.x[window][..., None] * dy[row, column]
        return dx, [dkernel, dy.sum(axis=(0, 1))]


class Embedding:
    def __init__(self, table):
        self.table = table

    def forward(self, ids):
        self.ids = ids
        return self.table[ids]

    def backward(self, dy):
        gradient = np.zeros_like(self.table)
        np.add.at(gradient, self.ids, dy)
        return None, [gradient]


class Normalization:
    """Over the last axis (`groups=None`), or over all positions and the channels of a group."""

    def __init__(self, gamma, beta, groups=None, epsilon=1e-3):
        self.gamma, self.beta, self.groups, self.epsilon = gamma, beta, groups, epsilon

    def _split(self, x):
        if self.groups is None:
            return x.reshape(-1, 1, x.shape[-1]), (2,)
        return x.reshape(-1, self.groups, x.shape[-1] // self.groups), (0, 2)

    def forward(self, x):
        values, self.axes = self._split(x)
        self.deviation = np.sqrt(values.var(axis=self.axes, keepdims=True) + self.epsilon)
        self.split = (values - values.mean(axis=self.axes, keepdims=True)) / self.deviation
        self.normalized = self.split.reshape(x.shape)
        return self.gamma * self.normalized + self.beta

    def backward(self, dy):
        positions = tuple(range(dy.ndim - 1))
        weights = [(dy * self.normalized).sum(axis=positions), dy.sum(axis=positions)]
        dn, _ = self._split(dy * self.gamma)
        mean = dn.mean(axis=self.axes, keepdims=True)
        along = (dn * self.split).mean(axis=self.axes, keepdims=True)
        return ((dn - mean - self.split * along) / self.deviation).reshape(dy.shape), weights


def per_example_gradients(blocks, x, labels):
    """Gradients of softmax cross-entropy on logits, by the weights of each block in order.

    Returns:
        The losses, and one array of shape `(batch_size, *weight.shape)` for each weight.
    """
    losses, examples = [], []
    for example, label in zip(x, labels, strict=True):
        value = example
        for block in blocks:
            value = block.forward(value)
        probabilities = np.exp(value - value.max())
        probabilities /= probabilities.sum()
        losses.append(-np.log(probabilities[label]))
        cotangent = probabilities - np.eye(len(value))[label]
        gradients = []
        for block in reversed(blocks):
            cotangent, of_weights = block.backward(cotangent)
            gradients = of_weights + gradients
        examples.append(gradients)
    return np.array(losses), [np.stack(parts) for parts in zip(*examples, strict=True)]


def linear_decay(step, initial_value, total_steps):
    """Yu et al. 2018: the initial value over a divisor that grows from one to two."""
    divisor = 1.0
    if step >= total_steps:
        divisor = 2.0
    else:
        divisor += step / total_steps
    return initial_value / divisor


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
