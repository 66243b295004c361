"""Gradients and loops on JAX.

JAX functions must be pure. Each function here runs foreign code inside a `keras.StatelessScope` of
its own, returns the new values of the variables, and assigns them outside of that scope.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

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
        shapes.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        return value

    jax.eval_shape(lambda: pure(record)[0])

    def with_probes(probes: list[Tensor]) -> tuple[Tensor, Any]:
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

    A step that is not compiled loops in Python: it would compile a `while_loop` anew each time.
    """
    if not any(isinstance(value, jax.core.Tracer) for value in [num_chunks, *carry]):
        for index in range(int(num_chunks)):
            carry = body(index, carry)
        return carry
    variables = list(variables)
    fixed = [(variable, variable.value) for variable in constants]

    def run(index: Tensor, state: tuple[list[Tensor], list[Tensor]]) -> Any:
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
        with keras.StatelessScope([*mapping, *further_mapping]) as scope:
            loss, further = function(argument)
        values = [scope.get_current_value(variable) for variable in variables]
        return loss, (further, values)

    return pure


def _assign(variables: Sequence[keras.Variable], values: Sequence[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
