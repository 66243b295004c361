"""Gradients, loops, and faster convolutions in loops on JAX.

JAX functions must be pure. Each function here runs foreign code inside a `keras.StatelessScope` of
its own, returns the new values of the variables, and assigns them outside of that scope.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from keras_adaclip.backend import contract, keras_private
from keras_adaclip.backend.contract import Function, ResultAndGradients, Tensor, Tensors, Variables


def purified(function: Function, variables: Variables) -> Function:
    """Return a pure form of `function`: its first argument holds the values of `variables`.

    It returns the result of `function` and the new values.
    """

    def pure(values: Tensors, *arguments: Any) -> ResultAndGradients:
        """Run the function in a scope of its own."""
        with keras_private.NestedScope(list(zip(variables, values, strict=True))) as scope:
            result = function(*arguments)
        return result, [scope.get_current_value(variable) for variable in variables]

    return pure


def differentiate_at_taps(function: Function, variables: Variables) -> ResultAndGradients:
    """Override: differentiates by zero probes that are added at the taps.

    A first, abstract run finds the shapes of the taps. XLA drops the additions.
    """
    pure, values = purified(function, variables), [variable.value for variable in variables]
    shapes: list[jax.ShapeDtypeStruct] = []

    def record(value: Tensor) -> Tensor:
        """Note the shape of a tapped tensor."""
        shapes.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        return value

    jax.eval_shape(lambda: pure(values, record)[0][0])

    def with_probes(probes: list[Tensor]) -> tuple[Tensor, Any]:
        """Return the loss as a function of the probes."""
        remaining = iter(probes)
        (loss, further), updates = pure(values, lambda value: value + next(remaining))
        return loss, (further, updates)

    probes = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    gradients, (further, updates) = jax.grad(with_probes, has_aux=True)(probes)
    _assign(variables, updates)
    return further, gradients


def gradients_of(function: Function, by: Variables, variables: Variables) -> ResultAndGradients:
    """Override: a pure function of the values of `by`."""
    held = [*variables, *by]
    pure, values = purified(function, held), [variable.value for variable in variables]

    def of_values(by_values: list[Tensor]) -> tuple[Tensor, Any]:
        """Return the loss as a function of the values of `by`."""
        (loss, further), updates = pure([*values, *by_values])
        return loss, (further, updates[: len(values)])

    by_values = [variable.value for variable in by]
    gradients, (further, updates) = jax.grad(of_values, has_aux=True)(by_values)
    _assign(variables, updates)
    return further, gradients


def gradients_at(function: Function, values: Tensors) -> tuple[list[Tensor], Any]:
    """Override: `jax.grad`."""
    return jax.grad(function, has_aux=True)(list(values))


def map_units(function: Function, values: list[Tensor], may_loop: bool = True) -> list[Tensor]:
    """Override: `jax.vmap`."""
    return jax.vmap(function)(values)


def examples_at_once(num_weights: int) -> int:
    """Override: gradients of at most 64 MiB, which `map_units` finds together."""
    return max(1, min(16, 2**24 // num_weights))


def loop_over_chunks(
    body: Function, carry: list[Tensor], num_chunks: Any, variables: Variables, constants: Variables
) -> list[Tensor]:
    """Override: one `while_loop` that threads the variables through.

    A step that is not compiled loops in Python: it would compile a `while_loop` again each time.
    """
    if not any(isinstance(value, jax.core.Tracer) for value in [num_chunks, *carry]):
        return contract.loop_over_chunks(body, carry, num_chunks, variables, constants)
    pure, fixed = purified(body, [*constants, *variables]), [each.value for each in constants]

    def run(index: Tensor, state: tuple[list[Tensor], list[Tensor]]) -> Any:
        """Run one round with the variables as part of the carry."""
        carry, values = state
        carry, values = pure([*fixed, *values], index, carry)
        return carry, values[len(fixed) :]

    initial = (carry, [variable.value for variable in variables])
    carry, values = jax.lax.fori_loop(0, jnp.asarray(num_chunks, jnp.int32), run, initial)
    _assign(variables, values)
    return carry


def after(value: Tensor, other: Tensor) -> Tensor:
    """Override: an optimization barrier."""
    return jax.lax.optimization_barrier((value, other))[0]


def _assign(variables: Variables, values: Tensors) -> None:
    """Assign new values to variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def fast_call(layer: keras.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
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
        outputs = _convolution(layer, inputs)
        if layer.use_bias:
            outputs = outputs + ops.convert_to_tensor(layer.bias)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def _convolution(layer: Any, inputs: Tensor) -> Tensor:
    """Return a layer's convolution, computed as a product of its windows with the kernel.

    The windows are shifted slices of the images, one for each element of the kernel.
    """
    kernel, strides, rates = ops.convert_to_tensor(layer.kernel), layer.strides, layer.dilation_rate
    spans = [rate * (size - 1) + 1 for rate, size in zip(rates, layer.kernel_size, strict=True)]
    pairs = jax.lax.padtype_to_pads(inputs.shape[1:-1], spans, strides, layer.padding.upper())
    inputs = jnp.pad(inputs, [(0, 0), *pairs, (0, 0)])
    # The place of the last window along each axis.
    ends = [size - span for size, span in zip(inputs.shape[1:-1], spans, strict=True)]

    def slice_at(element: tuple[int, ...]) -> Tensor:
        """Return the values that one element of the kernel meets in all windows."""
        starts = [place * rate for place, rate in zip(element, rates, strict=True)]
        axes = zip(starts, ends, strides, strict=True)
        cut = [slice(start, start + end + 1, stride) for start, end, stride in axes]
        return inputs[:, *cut]

    patches = jnp.concatenate([slice_at(at) for at in np.ndindex(*layer.kernel_size)], axis=-1)
    flat = patches.reshape(-1, patches.shape[-1])
    products = flat @ kernel.reshape(-1, kernel.shape[-1])
    return products.reshape(*patches.shape[:-1], kernel.shape[-1])
