"""The models of the suite in plain JAX: a tree of arrays, and a function of it and of a batch.

Each takes a `Weights`, from which it asks for its arrays in order: while initializing, those are
drawn; later, they are read from the list. So a network is written once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp
from suite import LENGTH, LSTM_UNITS, LSTM_WIDTH, VOCABULARY, WIDTH

Array = Any


class Weights:
    """The arrays of a model in the order of their use.

    Args:
        given: the arrays; None to draw new ones.
    """

    def __init__(self, given: Sequence[Array] | None = None) -> None:
        self._given = None if given is None else iter(given)
        self._rng = np.random.default_rng(0)
        self.drawn: list[Array] = []

    def __call__(self, *shape: int, scale: float | None = None) -> Array:
        """The next array.

        Args:
            shape: of the array.
            scale: a constant value; None for normal numbers scaled by the number of inputs.
        """
        if self._given is not None:
            return next(self._given)
        if scale is None:
            deviation = np.prod(shape[:-1]) ** -0.5
            array = deviation * self._rng.normal(size=shape)
        else:
            array = np.full(shape, scale)
        self.drawn.append(jnp.asarray(array, "float32"))
        return self.drawn[-1]


def _dense(weights: Weights, x: Array, units: int) -> Array:
    return x @ weights(x.shape[-1], units) + weights(units, scale=0.0)


def _convolution(
    weights: Weights, x: Array, filters: int, strides: int = 1, size: int = 3, bias: bool = True
) -> Array:
    kernel = weights(size, size, x.shape[-1], filters)
    dimensions = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernel, (strides, strides), "SAME", None, None, dimensions)
    return x + weights(filters, scale=0.0) if bias else x


def _max_pooling(x: Array, strides: int) -> Array:
    window, steps = (1, 2, 2, 1), (1, strides, strides, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, "VALID")


def _normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon)


def _layer_norm(weights: Weights, x: Array) -> Array:
    width = x.shape[-1]
    return _normalized(x, (-1,), 1e-3) * weights(width, scale=1.0) + weights(width, scale=0.0)


def _group_norm(weights: Weights, x: Array) -> Array:
    width = x.shape[-1]
    grouped = _normalized(x.reshape(*x.shape[:-1], 8, -1), (1, 2, 4), 1e-3)
    return grouped.reshape(x.shape) * weights(width, scale=1.0) + weights(width, scale=0.0)


def _fashion_mnist_cnn(weights: Weights, x: Array) -> Array:
    x = _max_pooling(nn.relu(_convolution(weights, x, 16, strides=2)), 1)
    x = _max_pooling(nn.relu(_convolution(weights, x, 32)), 1)
    return _dense(weights, nn.relu(_dense(weights, x.reshape(len(x), -1), 32)), 10)


def _cifar_cnn(weights: Weights, x: Array) -> Array:
    for filters in (32, 64, 128):
        for _ in range(2):
            x = nn.relu(_convolution(weights, x, filters))
        x = _max_pooling(x, 2)
    return _dense(weights, nn.relu(_dense(weights, x.reshape(len(x), -1), 128)), 10)


def _resnet_20(weights: Weights, x: Array) -> Array:
    def part(x: Array, filters: int, strides: int = 1, size: int = 3) -> Array:
        return _group_norm(weights, _convolution(weights, x, filters, strides, size, bias=False))

    x = nn.relu(part(x, 16))
    for filters, first_strides in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            strides = first_strides if block == 0 else 1
            y = part(nn.relu(part(x, filters, strides)), filters)
            shortcut = x if x.shape[-1] == filters else part(x, filters, strides, 1)
            x = nn.relu(y + shortcut)
    return _dense(weights, x.mean((1, 2)), 10)


def _features(weights: Weights, tokens: Array) -> Array:
    """Two pre-norm transformer blocks with four heads, and the mean over positions."""
    x = weights(VOCABULARY, WIDTH)[tokens] + weights(LENGTH, WIDTH)
    for _ in range(2):
        y = _layer_norm(weights, x)
        heads = [_dense(weights, y, WIDTH).reshape(*y.shape[:2], 4, -1) for _ in range(3)]
        y = nn.dot_product_attention(*heads)
        x = x + _dense(weights, y.reshape(x.shape), WIDTH)
        y = nn.gelu(_dense(weights, _layer_norm(weights, x), 4 * WIDTH), approximate=False)
        x = x + _dense(weights, y, WIDTH)
    return _layer_norm(weights, x).mean(1)


def _transformer(weights: Weights, tokens: Array) -> Array:
    return _dense(weights, _features(weights, tokens), 2)


def _head(weights: Weights, features: Array) -> Array:
    return _dense(weights, nn.gelu(_dense(weights, features, WIDTH), approximate=False), 2)


def _lstm(weights: Weights, tokens: Array) -> Array:
    x = weights(VOCABULARY, LSTM_WIDTH)[tokens].swapaxes(0, 1)
    kernel, bias = weights(LSTM_WIDTH, 4 * LSTM_UNITS), weights(4 * LSTM_UNITS, scale=0.0)
    recurrent = weights(LSTM_UNITS, 4 * LSTM_UNITS)
    # What is faster on CPU: all positions at once for a single example, one by one for a batch.
    is_single = len(tokens) == 1
    if is_single:
        x = x @ kernel + bias

    def step(state: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], None]:
        hidden, cell = state
        inputs = inputs if is_single else inputs @ kernel + bias
        parts = jnp.split(inputs + hidden @ recurrent, 4, axis=-1)
        gates = [nn.sigmoid(part) for part in (parts[0], parts[1], parts[3])]
        cell = gates[1] * cell + gates[0] * jnp.tanh(parts[2])
        return (gates[2] * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((len(tokens), LSTM_UNITS))
    (hidden, _), _ = lax.scan(step, (zeros, zeros), x)
    return _dense(weights, hidden, 2)


def _wide_mlp(weights: Weights, x: Array) -> Array:
    for _ in range(2):
        x = nn.relu(_dense(weights, x, 2048))
    return _dense(weights, x, 10)


Network = Callable[[Weights, Array], Array]

NETWORKS: dict[str, tuple[Network | None, Network]] = {
    "fashion_mnist_cnn": (None, _fashion_mnist_cnn),
    "cifar_cnn": (None, _cifar_cnn),
    "resnet_20": (None, _resnet_20),
    "transformer": (None, _transformer),
    "lstm": (None, _lstm),
    "wide_mlp": (None, _wide_mlp),
    "frozen_transformer": (_features, _head),
}
"""For each network the part that is frozen (None without one) and the part that is trained."""


def initialized(network: str, inputs: Array) -> tuple[list[Array], list[Array]]:
    """Draws the arrays of a network.

    Args:
        network: a key of `NETWORKS`.
        inputs: a small batch.

    Returns:
        The trainable and the frozen arrays.
    """
    frozen_part, trained_part = NETWORKS[network]
    frozen, trained = Weights(), Weights()
    if frozen_part is not None:
        inputs = frozen_part(frozen, inputs)
    trained_part(trained, jax.lax.stop_gradient(inputs))
    return trained.drawn, frozen.drawn


def logits(network: str, trained: list[Array], frozen: list[Array], inputs: Array) -> Array:
    """Runs a network.

    Args:
        network: a key of `NETWORKS`.
        trained: arrays from `initialized`.
        frozen: arrays from `initialized`.
        inputs: a batch.
    """
    frozen_part, trained_part = NETWORKS[network]
    if frozen_part is not None:
        inputs = frozen_part(Weights(frozen), inputs)
    return trained_part(Weights(trained), inputs)
