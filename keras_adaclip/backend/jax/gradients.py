"""Gradients, loops, and faster convolutions in loops on JAX.

JAX functions must be pure. Each function here runs foreign code inside a `keras.StatelessScope` of
its own, returns the new values of the variables, and assigns them outside of that scope.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

Tensor = Any


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Override: differentiates by zero probes that are added at the taps.

    A first, abstract run finds the shapes of the taps. XLA drops the additions.
    """
    pure = _purified(function, variables)
    shapes: list[jax.ShapeDtypeStruct] = []

    def record(value: Tensor) -> Tensor:
        """Note the shape of a tapped tensor."""
        shapes.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        return value

    jax.eval_shape(lambda: pure(record)[0])

    def with_probes(probes: list[Tensor]) -> tuple[Tensor, Any]:
        """Return the loss as a function of the probes."""
        remaining = iter(probes)
        return pure(lambda value: value + next(remaining))

    probes = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    gradients, (further, values) = jax.grad(with_probes, has_aux=True)(probes)
    _assign(variables, values)
    return further, gradients


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]],
    by: Sequence[keras.Variable],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Override: a pure function of the values of `by`."""
    pure = _purified(lambda _: function(), variables)

    def of_values(values: list[Tensor]) -> tuple[Tensor, Any]:
        """Return the loss as a function of the values of `by`."""
        return pure(None, list(zip(by, values, strict=True)))

    values = [variable.value for variable in by]
    gradients, (further, updates) = jax.grad(of_values, has_aux=True)(values)
    _assign(variables, updates)
    return further, gradients


def gradients_at(
    function: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], values: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Override: `jax.grad`."""
    return jax.grad(function, has_aux=True)(list(values))


def per_example_layer_gradients(
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    values: Sequence[Tensor],
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Override: `jax.vmap` of a vector-Jacobian product."""

    def one_example(inputs: Sequence[Tensor], cotangent: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of one example."""
        inputs = [value[None] for value in inputs]
        _, pullback = jax.vjp(lambda *shared: list(function(shared, inputs)), *values)
        return list(pullback([value[None] for value in cotangent]))

    return jax.vmap(one_example)(list(arguments), list(cotangents))


def map_examples(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Override: `jax.vmap`."""
    return jax.vmap(function)(values)


def map_units(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Override: `jax.vmap`."""
    return jax.vmap(function)(values)


def loop_over_chunks(
    body: Callable[[Tensor, list[Tensor]], list[Tensor]],
    carry: list[Tensor],
    num_chunks: Tensor | int,
    variables: Sequence[keras.Variable],
    constants: Sequence[keras.Variable] = (),
) -> list[Tensor]:
    """Override: one `while_loop` that threads the variables through.

    A step that is not compiled loops in Python: it would compile a `while_loop` again each time.
    """
    if not any(isinstance(value, jax.core.Tracer) for value in [num_chunks, *carry]):
        for index in range(int(num_chunks)):
            carry = body(index, carry)
        return carry
    variables = list(variables)
    fixed = [(variable, variable.value) for variable in constants]

    def run(index: Tensor, state: tuple[list[Tensor], list[Tensor]]) -> Any:
        """Run one round with the variables as part of the carry."""
        carry, values = state
        mapping = [*fixed, *zip(variables, values, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            carry = body(index, carry)
        return carry, [scope.get_current_value(variable) for variable in variables]

    initial = (carry, [variable.value for variable in variables])
    carry, values = jax.lax.fori_loop(0, jnp.asarray(num_chunks, jnp.int32), run, initial)
    _assign(variables, values)
    return carry


def after(value: Tensor, other: Tensor) -> Tensor:
    """Override: an optimization barrier."""
    return jax.lax.optimization_barrier((value, other))[0]


def _purified(function: Callable[[Any], tuple[Tensor, Any]], variables: Sequence[Any]) -> Any:
    """Return `function` as a pure one that also returns the new values of `variables`."""
    mapping = [(variable, variable.value) for variable in variables]

    def pure(argument: Any, further_mapping: Sequence[tuple[Any, Tensor]] = ()) -> Any:
        """Run the function in a scope of its own."""
        with keras.StatelessScope([*mapping, *further_mapping]) as scope:
            loss, further = function(argument)
        values = [scope.get_current_value(variable) for variable in variables]
        return loss, (further, values)

    return pure


def _assign(variables: Sequence[keras.Variable], values: Sequence[Tensor]) -> None:
    """Assign new values to variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def fast_call(layer: keras.layers.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
    """Override: convolutions of Keras's own classes, in a loop and on a CPU.

    Inside of a `while_loop`, XLA computes the gradients of a convolution 25 to 30 times slower than
    outside, but a matrix product as fast as ever. So a convolution is computed as the product of
    its windows with the kernel. A round of the federated benchmark's row `cnn` takes 759 instead of
    1,642 ms (process time of one core).
    """
    if not in_loop or jax.default_backend() != "cpu" or layer.compute_dtype != "float32":
        return None
    is_own = type(layer) in (keras.layers.Conv1D, keras.layers.Conv2D)
    if not is_own or {"call", "convolution_op"} & set(vars(layer)):
        return None
    is_plain = layer.data_format == "channels_last" and layer.padding in ("valid", "same")
    if not is_plain or layer.groups != 1 or getattr(layer, "quantization_mode", None):
        return None

    def call(inputs: Tensor) -> Tensor:
        """Return the outputs of the layer."""
        kernel = ops.convert_to_tensor(layer.kernel)
        outputs = convolution(inputs, kernel, layer.strides, layer.dilation_rate, layer.padding)
        if layer.use_bias:
            outputs = outputs + ops.convert_to_tensor(layer.bias)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def convolution(
    inputs: Tensor,
    kernel: Tensor,
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    padding: str,
) -> Tensor:
    """Return a convolution, computed as a product of its windows with the kernel.

    The windows are shifted slices of the images, one for each element of the kernel.

    Args:
        inputs: Tensor of shape `(batch_size, *spatial, channels)`.
        kernel: Tensor of shape `(*kernel_size, channels, filters)`.
        strides: Steps between two windows.
        dilation_rate: Steps between two elements of the kernel.
        padding: `"valid"` or `"same"`.

    Returns:
        Tensor of shape `(batch_size, *windows, filters)`.
    """
    sizes, kernel_size = inputs.shape[1:-1], kernel.shape[:-2]
    spans = [
        rate * (elements - 1) + 1 for rate, elements in zip(dilation_rate, kernel_size, strict=True)
    ]
    pairs = jax.lax.padtype_to_pads(sizes, spans, strides, padding.upper())
    inputs = jnp.pad(inputs, [(0, 0), *pairs, (0, 0)])
    windows = [
        (size - span) // stride + 1
        for size, span, stride in zip(inputs.shape[1:-1], spans, strides, strict=True)
    ]

    def slice_at(element: tuple[int, ...]) -> Tensor:
        """Return the values that one element of the kernel meets in all windows."""
        cut = [slice(None)]
        for place, rate, stride, number in zip(
            element, dilation_rate, strides, windows, strict=True
        ):
            start = place * rate
            cut.append(slice(start, start + (number - 1) * stride + 1, stride))
        return inputs[tuple(cut)]

    patches = jnp.concatenate([slice_at(place) for place in np.ndindex(*kernel_size)], axis=-1)
    flat = patches.reshape(-1, patches.shape[-1])
    products = flat @ kernel.reshape(-1, kernel.shape[-1])
    return products.reshape(*patches.shape[: 1 + len(windows)], kernel.shape[-1])
