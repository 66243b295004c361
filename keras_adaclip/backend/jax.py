"""The JAX side of `keras_adaclip.backend`; the docstrings are in `tensorflow.py`.

JAX functions must be pure. Each function here that runs foreign code does so inside a
`keras.StatelessScope` of its own, returns the new values of the variables, and assigns them in
the scope outside.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from keras_adaclip.backend import (
    direct_calls,
    host_memory,
    jax_calls,
    jax_compiling,
    jax_devices,
    keras_private,
)
from keras_adaclip.backend.counter_gaussian import num_blocks_for, standard_normal
from keras_adaclip.backend.direct_calls import Effects

Tensor = Any

Recording = direct_calls.Recording
quicker_call_in_loop = jax_calls.quicker_call_in_loop
compiled_for_cpu = jax_compiling.compiled_for_cpu
num_batch_shards = jax_devices.num_batch_shards
gathered = jax_devices.gathered
is_whole_in_each_process = jax_devices.is_whole_in_each_process
logs_for_keras = jax_devices.logs_for_keras
may_join_batches = jax_devices.may_join_batches
num_processes = jax_devices.num_processes
num_replicas = jax_devices.num_replicas
process_number = jax_devices.process_number
number_of_replica = jax_devices.number_of_replica
on_all_shards = jax_devices.on_all_shards
scope_of_devices = jax_devices.scope_of_devices
unsupported_distribution = jax_devices.unsupported_distribution
sums_of_replicas = jax_devices.sums_of_replicas
applied_as_they_are = jax_devices.applied_as_they_are


def needs_fixed_shapes(model: keras.Model) -> bool:
    """Every new shape is a new compilation."""
    return not model.run_eagerly


def slices_any_size(model: keras.Model) -> bool:
    """The loop over chunks is compiled even where the step is not."""
    return False


def is_traced(value: Any) -> bool:
    """Whether `value` is a tensor that stands for what compiled code computes."""
    return isinstance(value, jax.core.Tracer)


def loops_in_python() -> bool:
    """`lax.scan` is one operation."""
    return False


def computes_on_cpu() -> bool:
    """Whether steps run on the CPU, where what matters is how memory is written."""
    return jax.default_backend() == "cpu"


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """On a CPU the weights of one client stay in the cache, and a loop costs nothing."""
    return not computes_on_cpu()


def unsupported_compilation(model: keras.Model) -> str | None:
    """JAX steps are private compiled or not."""
    return None


def array_of(variable: keras.Variable) -> np.ndarray:
    """The value of a variable, put together where devices hold parts of it."""
    return np.asarray(variable.value)


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Runs `function(tap)` and differentiates its loss by every tensor that passed `tap`.

    A first, abstract run finds the shapes of the taps; a second one adds a zero probe to each
    tap and differentiates by the probes (XLA drops the additions).
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


def map_examples(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to the rows of `values` and stacks what it returns."""
    return jax.vmap(function)(values)


def after(value: Tensor, other: Tensor) -> Tensor:
    """`value`, to be used only when `other` is there: what follows is not computed early."""
    return jax.lax.optimization_barrier((value, other))[0]


def quicker_call(layer: keras.layers.Layer) -> Callable[[Tensor], Tensor] | None:
    """XLA chooses how values lie."""
    return None


def convolution_kernel_gradients(
    inputs: Tensor,
    cotangents: Tensor,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    groups: int,
) -> Tensor | None:
    """Products of patches are as good."""
    return None


def take_rows(rows: Tensor, places: Any) -> Tensor:
    """`rows[:, places]`, of shape `(batch_size, *places.shape, channels)`."""
    return ops.take(rows, places, axis=1)


def zero_where_not(kept: Tensor, values: Tensor) -> Tensor:
    """`values` with zeros in the rows that are not `kept`, which may hold NaN."""
    return ops.where(ops.reshape(kept, (-1, *([1] * (len(values.shape) - 1)))), values, 0.0)


def outside_random_state() -> bytes:
    """Keras draws from its seed generators alone."""
    return b""


def per_example_layer_gradients(
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    values: Sequence[Tensor],
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of `sum(function(values, arguments) * cotangents)` by `values`, by example."""

    def one_example(inputs: Sequence[Tensor], cotangent: Sequence[Tensor]) -> list[Tensor]:
        inputs = [value[None] for value in inputs]
        _, pullback = jax.vjp(lambda *shared: list(function(shared, inputs)), *values)
        return list(pullback([value[None] for value in cotangent]))

    return jax.vmap(one_example)(list(arguments), list(cotangents))


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]],
    by: Sequence[keras.Variable],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Gradients of the scalar loss that `function` returns, by the variables in `by`."""
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
    """Gradients of a scalar loss by tensors, also inside of `map_units`."""
    return jax.grad(function, has_aux=True)(list(values))


def map_units(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to every unit at once."""
    return jax.vmap(function)(values)


def loop_over_chunks(
    body: Callable[[Tensor, list[Tensor]], list[Tensor]],
    carry: list[Tensor],
    num_chunks: Tensor | int,
    variables: Sequence[keras.Variable],
    constants: Sequence[keras.Variable] = (),
) -> list[Tensor]:
    """Runs `carry = body(index, carry)` in one `while_loop`, variables threaded through it.

    A step that is not compiled loops in Python: a `while_loop` of its own would be compiled anew
    in every step.
    """
    if not any(isinstance(value, jax.core.Tracer) for value in [num_chunks, *carry]):
        for index in range(int(num_chunks)):
            carry = body(jnp.asarray(index, jnp.int32), carry)
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


def evaluate(function: Callable[[], Any], variables: Sequence[keras.Variable]) -> Any:
    """Runs `function` outside training, discards its updates, returns NumPy arrays."""
    (result,) = evaluate_each(lambda _: function(), variables, [()])
    return result


def evaluate_each(
    function: Callable[[Any], Any], variables: Sequence[keras.Variable], arguments: Sequence[Any]
) -> list[Any]:
    """`evaluate` for several arguments of `function`, compiled once."""
    variables = list(variables)

    def pure(values: list[Tensor], argument: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(argument)

    compiled = jax.jit(pure)
    values = [variable.value for variable in variables]
    return [
        keras.tree.map_structure(np.asarray, compiled(values, argument)) for argument in arguments
    ]


class Evaluator:
    """Runs a function as the steps of a model run: compiled once, or eagerly."""

    def __init__(self, function: Callable[[list[Tensor], Any], Any], model: keras.Model) -> None:
        self.effects = Effects()
        self._is_new = True
        self._run = jax.jit(function) if needs_fixed_shapes(model) else function

    def __call__(self, rows: list[Any], further: Any) -> Any:
        """What the function returns, as NumPy arrays."""
        if self._is_new and hasattr(self._run, "trace"):
            # Callbacks to Python, and references that are written to.
            effects = self._run.trace(rows, further).jaxpr.effects
            self.effects = Effects(writes=any("Debug" not in str(type(e)) for e in effects))
        self._is_new = False
        return keras.tree.map_structure(np.asarray, self._run(rows, further))


def full_precision() -> contextlib.AbstractContextManager[None]:
    """Within it, products of float32 matrices are float32, where a GPU would take TF32."""
    return jax.default_matmul_precision("highest")


def peak_memory(
    function: Callable[[Any], Any],
    variables: Sequence[keras.Variable],
    argument: Any,
    is_compiled: bool,
) -> int:
    """The bytes that `function` takes beyond `memory_in_use`, as the compiler plans it."""
    variables = list(variables)

    def pure(values: list[Tensor], argument: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(argument)

    values = [variable.value for variable in variables]
    compiled = jax.jit(pure, compiler_options=jax_compiling.compiler_options())
    plan = compiled.lower(values, argument).compile().memory_analysis()
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def memory_in_use() -> int:
    """Nothing: the compiler's plan is for one function."""
    return 0


def free_memory() -> int:
    """The bytes that may still be taken on the device."""
    statistics = jax.devices()[0].memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return host_memory.free_memory()
    return int(statistics["bytes_limit"] - statistics["bytes_in_use"])


def trace(function: Callable[[], Any]) -> None:
    """Runs `function` for what Python sees of it, such as shapes; nothing is computed."""

    def without_result() -> None:
        function()

    jax.eval_shape(without_result)


def fit_arguments(
    batches: keras.utils.PyDataset, rows: Any, model: keras.Model, num_open_axes: Any = None
) -> dict[str, Any]:
    """`batches`, prepared as Keras prepares them."""
    return {"x": batches}


@contextlib.contextmanager
def keep_variables(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Makes sure that an error leaves every variable with a value.

    Keras's trainer empties the variables before the first step and fills them again from the
    state of the latest one; an error before there is such a state would leave them empty.
    """
    values = [(variable, variable.value) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in values:
            if keras_private.is_empty(variable) and not value.is_deleted():
                variable.assign(value)
        raise


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Standard normal float32 noise, a function of `(key, step, stream)` alone."""
    size, key = math.prod(shape), jax.lax.bitcast_convert_type(key, jnp.uint32)
    draw = _fused_normal(num_blocks_for(size), key, step, np.uint32(stream))
    return jnp.reshape(draw[:size], tuple(shape))


# Outside of a compiled step each of its hundred operations would be run by itself.
_fused_normal = jax.jit(standard_normal, static_argnums=0)


def train_step(
    model: keras.Model,
    step: Callable[[keras.Model, Any], dict[str, Tensor]],
    state: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]],
    data: Any,
) -> tuple[dict[str, Tensor], tuple[list[Tensor], ...]]:
    """Runs `step(model, data)` as the pure function `(state, data) -> (logs, state)`."""
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    mapping = [
        pair
        for variables, values in zip(groups, state, strict=True)
        for pair in zip(variables, values, strict=True)
    ]
    with keras.StatelessScope(mapping) as scope:
        logs = step(model, data)
    return logs, tuple(
        [scope.get_current_value(variable) for variable in variables] for variables in groups
    )


def _purified(function: Callable[[Any], tuple[Tensor, Any]], variables: Sequence[Any]) -> Any:
    """`function` as a pure one that also returns the new values of `variables`."""
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
