"""The functions in which the backends differ, each with its docstring and its default.

A backend overrides a function by defining one of the same name and signature in one of its two
modules. `keras_adaclip.backend` offers the backend's function, or else the default of this module.
Functions that raise `NotImplementedError` here have no default.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private

Tensor = Any
Tensors = Sequence[Tensor]
Variables = Sequence[keras.Variable]
# What it takes and returns is stated where it is an argument.
Function = Callable[..., Any]
ResultAndGradients = tuple[Any, list[Tensor]]
NO_MEMORY_KNOWN = (
    'Here microbatch_size="auto" needs `memory_limit`, in bytes: the system does not tell how much '
    "memory is free."
)


# How steps run.


def needs_fixed_shapes(model: keras.Model) -> bool:
    """Return whether every batch of `model` must have the same shape.

    XLA compiles once for each shape; graphs and eager steps take any.
    """
    return False


def is_traced(value: Any) -> bool:
    """Return whether `value` is a symbolic tensor of a step that is being traced."""
    return False


def loops_in_python() -> bool:
    """Return whether a loop over time steps runs in Python, unrolled or not."""
    return False


def computes_on_cpu() -> bool:
    """Return whether steps run on the CPU."""
    raise NotImplementedError


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Return whether clients with dense layers train faster side by side than one after another.

    Args:
        num_parameters: Number of parameters of the model.
    """
    raise NotImplementedError


def compiled_for_cpu() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Keras's trainer compiles steps with options for the CPU."""
    return contextlib.nullcontext()


def unsupported_compilation(model: keras.Model) -> str | None:
    """Return why steps compiled as `model` asks cannot be private, or None if they can."""
    return None


def full_precision() -> contextlib.AbstractContextManager[None]:
    """Return a context in which products of float32 matrices do not use TF32 or bfloat16."""
    return contextlib.nullcontext()


def train_step(
    model: keras.Model, step: Callable[[keras.Model, Any], dict[str, Tensor]], *arguments: Any
) -> Any:
    """Run `step(model, data)` in the form that Keras's trainer of this backend expects.

    Args:
        model: A private model.
        step: The step, which returns logs.
        *arguments: The arguments that the trainer passed: the data, on JAX after the state.
    """
    raise NotImplementedError


def trace(function: Callable[[], None]) -> None:
    """Run `function` for what Python sees of it, such as shapes."""
    function()


def fit_arguments(
    batches: keras.utils.PyDataset,
    rows: dict[str, Any],
    model: keras.Model,
    num_open_axes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the arguments of Keras's `fit` that make it train on `batches`.

    Args:
        batches: The batches of an epoch, dicts of structures of NumPy arrays.
        rows: A batch of any size, from which types and shapes are taken.
        model: The model to train. Batches are divided among its replicas, if it has any.
        num_open_axes: For each part of a batch, the number of leading axes whose length differs
            from batch to batch. None means one.
    """
    return {"x": batches}


def keep_variables(variables: Variables) -> contextlib.AbstractContextManager[None]:
    """Return a context in which an error leaves every variable with a value."""
    return contextlib.nullcontext()


# Gradients.


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]], variables: Variables
) -> ResultAndGradients:
    """Run `function(tap)` and differentiate its loss by every tensor passed to `tap`.

    Args:
        function: Takes `tap`, which returns its argument. Returns a scalar loss and any structure
            of further tensors.
        variables: The variables that `function` may update.

    Returns:
        The further tensors, and one gradient for each call of `tap`, in order.
    """
    raise NotImplementedError


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]], by: Variables, variables: Variables
) -> ResultAndGradients:
    """Return the gradients of the scalar loss of `function` by the variables in `by`.

    Args:
        function: Returns a scalar loss and any structure of further tensors.
        by: The variables to differentiate by.
        variables: The variables that `function` may update.

    Returns:
        The further tensors, and one dense gradient for each variable of `by`, zeros if unconnected.
    """

    def at_taps(tap: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]:
        """Call the function with values of `by` that passed the tap."""
        with keras_private.NestedScope([(each, tap(each.value)) for each in by]):
            return function()

    return backend.differentiate_at_taps(at_taps, variables)


def gradients_at(
    function: Callable[[Tensors], tuple[Tensor, Any]], values: Tensors
) -> tuple[list[Tensor], Any]:
    """Return the gradients of a scalar loss by tensors, also inside of `map_units`.

    Args:
        function: Takes the tensors. Returns a scalar loss and a list of further tensors.
        values: Tensors of a floating type.

    Returns:
        One gradient for each of `values`, zeros if unconnected, and the further tensors.
    """
    further, gradients = backend.differentiate_at_taps(
        lambda tap: function([*map(tap, values)]), ()
    )
    return gradients, further


def per_example_layer_gradients(
    function: Function, values: Tensors, arguments: Tensors, cotangents: Tensors
) -> list[Tensor]:
    """Return the gradient of `sum(function(values, arguments) * cotangents)` of each example.

    Args:
        function: Takes the shared `values` and the arguments of a small batch, whose first row is
            one example.
        values: Tensors shared by all examples; the gradients are taken by these.
        arguments: Tensors of shape `(batch_size, ...)`.
        cotangents: One tensor of shape `(batch_size, ...)` for each output of `function`.

    Returns:
        One tensor of shape `(batch_size, *value.shape)` for each of `values`.
    """

    def one_example(example: list[Tensor]) -> list[Tensor]:
        """Return the gradients of one example."""
        rows, weights = example[: len(arguments)], example[len(arguments) :]
        inputs = [ops.stack([row] * backend.least_batch_size()) for row in rows]

        def inner_product(shared: Tensors) -> tuple[Tensor, list[Tensor]]:
            """Return the inner product of the example's outputs and cotangents."""
            pairs = zip(function(shared, inputs), weights, strict=True)
            return sum(ops.sum(output[0] * weight) for output, weight in pairs), []

        return list(backend.gradients_at(inner_product, values)[0])

    return backend.map_units(one_example, [*arguments, *cotangents])


def least_batch_size() -> int:
    """Return the size of the smallest batch that the backend differentiates without an error."""
    return 1


def convolution_kernel_gradients(
    layer: Any, inputs: Tensor, cotangents: Tensor, pairs: Sequence[tuple[int, int]]
) -> Tensor | None:
    """Return the per-example gradients of a convolution's kernel, or None.

    None means that the backend has no operation that is faster than products of patches.

    Args:
        layer: A convolution of Keras, for `kernel_size`, `strides`, `dilation_rate` and `groups`.
        inputs: Tensor of shape `(batch_size, *spatial, channels)`.
        cotangents: Tensor of shape `(batch_size, *spatial, filters)`.
        pairs: Rows of zeros before and after each spatial dimension of the inputs.

    Returns:
        Float32 of shape `(batch_size, filters, channels // groups, *kernel_size)`, or None.
    """
    return None


def fast_call(layer: keras.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
    """Return a faster function with the results of `layer.call`, or None.

    Args:
        layer: A built layer.
        in_loop: Whether the function is called inside of `loop_over_chunks`.
    """
    return None


# Loops and maps.


def map_examples(function: Function, values: list[Tensor]) -> list[Tensor]:
    """Apply `function` to each row of `values` and stack its results.

    Args:
        function: Takes and returns lists of tensors without a batch axis. Its first result is a
            scalar that may be differentiated by `values`; the others may not.
        values: Tensors of shape `(batch_size, ...)`.
    """
    return backend.map_units(function, values)


def map_units(function: Function, values: list[Tensor], may_loop: bool = True) -> list[Tensor]:
    """Apply `function` to all units at once.

    Args:
        function: Takes and returns lists of tensors without the axis of units.
        values: Tensors of shape `(num_units, ...)`.
        may_loop: Whether a function that cannot be mapped may take one unit after another (in
            PyTorch). It could then carry Python numbers from one unit to the next.

    Returns:
        The results of `function`, stacked along a first axis of units.
    """
    raise NotImplementedError


def examples_at_once(num_weights: int) -> int:
    """Return how many examples of a model without layer-wise rules are differentiated at once.

    Args:
        num_weights: How many numbers are trained. Each example has a gradient of this size.
    """
    return 1


def loop_over_chunks(
    body: Function, carry: list[Tensor], num_chunks: Any, variables: Variables, constants: Variables
) -> list[Tensor]:
    """Run `carry = body(index, carry)` for each index below `num_chunks`, compiled if possible.

    Args:
        body: May read and assign `variables`.
        carry: Tensors of constant shape.
        num_chunks: May be known only when the step runs.
        variables: The variables that `body` assigns.
        constants: Further variables that `body` reads.
    """
    for index in range(int(num_chunks)):
        carry = body(index, carry)
    return carry


def after(value: Tensor, other: Tensor) -> Tensor:
    """Return `value`, available only once `other` has been computed.

    This keeps a compiler from computing early, and storing, what depends on `value`.
    """
    return value


# Rows of batches.


def masked(kept: Tensor, values: Tensor) -> Tensor:
    """Return `values` with zeros in the rows that are not `kept`, which may hold NaN.

    Args:
        kept: Bool of shape `(batch_size,)`.
        values: Tensor of shape `(batch_size, ...)`.
    """
    return ops.where(ops.reshape(kept, (-1, *([1] * (len(values.shape) - 1)))), values, 0.0)


def sum_of_rows(values: Tensor, places: Tensor, num_rows: int) -> Tensor:
    """Return a table to whose rows the given ones are added.

    Args:
        values: Float32 tensor of shape `(num_values, size)`.
        places: Int32 tensor of shape `(num_values,)`, the row of the table for each.
        num_rows: Number of rows of the table.
    """
    return ops.segment_sum(values, places, num_segments=num_rows)


# Randomness.


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Return standard normal float32 noise, a function of the arguments alone.

    Args:
        shape: Shape of the noise.
        key: Int32 tensor of shape (2,), 64 random bits.
        step: Integer scalar tensor, below 2^31.
        stream: Number of the draw within the step, below 2^32.
    """
    raise NotImplementedError


def seed_of_step(key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Return two random int32 numbers below 2^30, a function of the arguments alone.

    They do not reveal the key.

    Args:
        key: Int32 tensor of shape (2,), 64 random bits.
        step: Integer scalar tensor, below 2^31.
        stream: Number of the draw within the step, below 2^32.
    """
    raise NotImplementedError


def seeded_outside(seed: Tensor) -> contextlib.AbstractContextManager[None]:
    """Return a context in which random generators other than Keras's own begin with a seed.

    Keras's layers draw from them where they have no seed of their own; afterwards they go on as
    before.

    Args:
        seed: Two integers.
    """
    return contextlib.nullcontext()


# Evaluation outside of training.


@dataclass(frozen=True)
class Effects:
    """The side effects of a traced function.

    Args:
        writes: Whether it writes to something other than Keras variables, or calls Python.
        branches: Whether values decide what runs, in a form that cannot be vectorized and
            differentiated.
    """

    writes: bool = False
    branches: bool = False


def array_of(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable, gathered from its devices, outside of compiled code."""
    return ops.convert_to_numpy(ops.convert_to_tensor(variable))


def evaluate_each(
    function: Callable[[Any], Any], variables: Variables, arguments: Sequence[Any]
) -> list[Any]:
    """Run `function` outside of training on each argument; return its tensors as NumPy arrays.

    It is compiled once where compiling is slow.

    Args:
        function: Takes one of `arguments`. Reads and assigns `variables` only. Its updates are
            discarded.
        variables: The variables of the function.
        arguments: Structures of NumPy arrays, all of the same shapes.
    """
    values = [(variable, variable.value) for variable in variables]
    results = []
    for argument in arguments:
        with keras.StatelessScope(values):
            result = function(argument)
        results.append(keras.tree.map_structure(ops.convert_to_numpy, result))
    return results


class Evaluator:
    """Runs a function in the way the steps of a model run: compiled once, or eagerly.

    Args:
        function: Takes a list of arrays whose first axis is that of the rows, and a structure of
            further arrays. Returns a structure of tensors.
        model: The model.
        is_brief: Whether the function runs a few times on a few rows, so that it is compiled only
            where eager calls would take longer.

    Attributes:
        effects: The side effects of the function, known after its first run.
    """

    def __init__(self, function: Function, model: keras.Model, is_brief: bool = False) -> None:
        self.effects = Effects()
        self._function, self._model, self._is_brief = function, model, is_brief
        self._run: Any = None

    def __call__(self, rows: list[Any], further: Any) -> Any:
        """Return the results of the function as NumPy arrays."""
        rows, further = keras.tree.map_structure(ops.convert_to_tensor, (rows, further))
        self._run = self._run or self._prepared(rows, further)
        return keras.tree.map_structure(ops.convert_to_numpy, self._run(rows, further))

    def program(self, rows: list[Any], further: Any) -> str | None:
        """Return the text of what is compiled, None if there is none."""
        return None

    def _prepared(self, rows: list[Tensor], further: Any) -> Callable[[list[Tensor], Any], Any]:
        """Return the function to run, and note its effects."""
        raise NotImplementedError


class Recording:
    """Calls a function, and may repeat its operations from a record. By default it only calls."""

    def clear(self) -> None:
        """Forget all records."""

    def call(self, function: Function, values: Tensors) -> list[Tensor]:
        """Return `function(values)`.

        Args:
            function: Takes and returns a list of tensors. It must be the same until `clear`.
            values: Tensors.
        """
        return function(list(values))


def attempt(function: Function, *arguments: Any) -> tuple[Any, Exception | None]:
    """Return the result of a function and None, or None and the error that it raised.

    For what is exact without the result: backends raise exceptions of many kinds where they cannot
    trace, vectorize or differentiate a function.
    """
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error


# Memory, for `microbatch_size="auto"`.


def free_memory() -> int:
    """Return the number of bytes that may still be allocated, by default on the machine.

    Raises:
        ValueError: If the system does not say.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(each.split()[1]) for each in lines if "MemAvailable" in each)
    except OSError as error:
        raise ValueError(NO_MEMORY_KNOWN) from error
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # There is no limit, or there are no control groups.
        return free
    return min(free, limit - used)


# Devices and processes. The defaults are those of one device and one process.


def unsupported_distribution(model: keras.Model) -> str | None:
    """Return why private training cannot run on the model's devices, or None if it can."""
    raise NotImplementedError


def num_batch_shards() -> int:
    """Return the number of devices among which a compiled step divides the rows of a batch."""
    return 1


def on_all_shards(value: Tensor) -> Tensor:
    """Return `value` with its first axis divided among the devices like that of a batch."""
    return value


def num_processes() -> int:
    """Return the number of processes that train together."""
    return 1


def process_number() -> int:
    """Return the number of this process, from 0."""
    return 0


def gathered(array: np.ndarray) -> np.ndarray:
    """Return the arrays of all processes, of shape `(num_processes, *array.shape)`.

    All processes call it together, outside of steps, with arrays of one shape and dtype.
    """
    return np.asarray(array)[None]


def is_whole_in_each_process(variable: keras.Variable) -> bool:
    """Return whether every process holds the whole variable."""
    return True


def logs_for_keras(logs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the logs of a step in the shape that Keras's trainer expects."""
    return logs


def num_replicas(model: keras.Model) -> int:
    """Return the number of replicas that each run a step on rows of their own."""
    return 1


def number_of_replica() -> Any:
    """Return the number of the replica that runs this step, from 0."""
    return 0


def may_join_batches(model: keras.Model, data: Any) -> bool:
    """Return whether dividing `data` among the replicas may put rows of two batches in one step."""
    return False


def scope_of_devices(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Return a context in which variables are made and assigned on all devices of `model`."""
    return contextlib.nullcontext()


def of_replicas(tensors: Tensors) -> list[list[Tensor]]:
    """Return the tensors of each replica, the same lists on all of them, inside of a step."""
    return [list(tensors)]


def shares_of_replica(gradients: Tensors) -> list[Tensor]:
    """Return the shares of `gradients` that add up to them if each replica gives its own.

    Keras's optimizers add up the gradients of the replicas, here after the noise, which is the same
    for all replicas.
    """
    return list(gradients)
