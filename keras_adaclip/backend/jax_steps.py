"""Steps, noise, evaluation and devices on JAX.

On a CPU, private steps are compiled with XLA's scheduler that saves memory. The default one starts
everything that could run at the same time, such as the norms of all layers, and holds what they
read all at once. In the speed benchmark's rows `cifar` and `resnet` the scheduler lowers the peak
of memory from 2.0 to 1.0 and from 3.3 to 1.9 times that of a plain step; the step of `cnn-256`
takes 162 instead of 178 ms (process time of one core).

Over several devices (Keras's `keras.distribution`) the step stays one program. The rows of a batch
are divided among the devices. Weights and the optimizer's variables are the same everywhere, or
divided by `ModelParallel`. XLA adds the sums of the devices. So each unit is clipped once, and
there is one noise.
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_adaclip.backend import contract, keras_private
from keras_adaclip.backend.contract import Effects, Function, Tensor, Variables
from keras_adaclip.backend.counter_gaussian import rounded_size, standard_normal, threefry
from keras_adaclip.backend.jax_gradients import purified

# What examines a model runs a few times only. It compiles in half of the time with the first option
# and in a third with both, with which large batches take twice as long.
_QUICK_COMPILATION = {"xla_cpu_use_fusion_emitters": False}
_QUICKEST_COMPILATION = {"xla_backend_optimization_level": "0", **_QUICK_COMPILATION}
_MANY_NUMBERS = 1 << 19
_FEW_RUNS = 2
_SCHEDULER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
_SUPPORTED = (keras.distribution.DataParallel, keras.distribution.ModelParallel)
# Flags by which a user decides: that option, and its older name.
_SCHEDULER_FLAGS = ("xla_cpu_scheduler_type", "xla_cpu_enable_concurrency_optimized_scheduler")


def needs_fixed_shapes(model: keras.Model) -> bool:
    """Override: every new shape is a new compilation, of each operation in eager steps."""
    return True


def is_traced(value: Any) -> bool:
    """Override: a tracer."""
    return isinstance(value, jax.core.Tracer)


def computes_on_cpu() -> bool:
    """Override: the default backend of JAX."""
    return jax.default_backend() == "cpu"


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Override: on a CPU the weights of one client stay in the cache, and a loop costs nothing."""
    return not computes_on_cpu()


def compiled_for_cpu() -> contextlib.AbstractContextManager[None]:
    """Override: replaces the `jit` of Keras's trainer by one with `compiler_options`."""
    options = compiler_options()
    if not options:
        return contextlib.nullcontext()
    return keras_private.replaced_jit(functools.partial(jax.jit, compiler_options=options))


def compiler_options() -> dict[str, str]:
    """Return the options for `jax.jit`, without those that the user set in `XLA_FLAGS`."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {} if any(flag in flags for flag in _SCHEDULER_FLAGS) else _known(_SCHEDULER)


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for the CPU that this release of XLA knows; none on an accelerator."""
    return {name: v for name, v in options.items() if computes_on_cpu() and _is_known(name, v)}


@functools.cache
def _is_known(option: str, value: Any) -> bool:
    """Return whether this release of XLA knows an option."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def full_precision() -> contextlib.AbstractContextManager[None]:
    """Override: the highest precision of products."""
    return jax.default_matmul_precision("highest")


def train_step(
    model: keras.Model, step: Function, state: tuple[list[Tensor], ...], data: Any
) -> tuple[dict[str, Tensor], tuple[list[Tensor], ...]]:
    """Override: the pure function `(state, data) -> (logs, state)`."""
    held = [*model.trainable_variables, *model.non_trainable_variables]
    held += [*model.optimizer.variables, *model.metrics_variables]
    logs, values = purified(step, held)(keras.tree.flatten(state), model, data)
    return logs, keras.tree.pack_sequence_as(state, values)


def trace(function: Callable[[], None]) -> None:
    """Override: an abstract run; nothing is computed."""
    jax.eval_shape(function)


@contextlib.contextmanager
def keep_variables(variables: Variables) -> Iterator[None]:
    """Override: fills variables that Keras's trainer has emptied.

    The trainer empties the variables before the first step and fills them from the state of the
    latest step. An error before there is such a state would leave them empty.
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
    """Override: Threefry in counter mode; see `counter_gaussian.py`.

    On a CPU, XLA would compile the cipher again for every tensor that takes a part of the draw,
    which takes seconds. It does not look through a condition, although this one always holds.
    """
    size, key = math.prod(shape), jax.lax.bitcast_convert_type(key, jnp.uint32)

    def draw() -> Tensor:
        """Return the noise."""
        return _fused_normal(rounded_size(size), key, step, np.uint32(stream))

    def none() -> Tensor:
        """Return numbers with which nothing could be trained."""
        return jnp.full(rounded_size(size), jnp.nan, jnp.float32)

    normal = jax.lax.cond(step >= 0, draw, none) if computes_on_cpu() else draw()
    return jnp.reshape(normal[:size], tuple(shape))


def seed_of_step(key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Override: Threefry. The noise takes the blocks of stream 0 for its keys."""
    key = jax.lax.bitcast_convert_type(key, jnp.uint32)
    words = threefry((key[0], key[1]), (jnp.uint32(step), jnp.uint32(stream + 1)))
    return jax.lax.bitcast_convert_type(jnp.stack(words), jnp.int32)


# Outside of a compiled step, each of its hundred operations would run by itself.
_fused_normal = jax.jit(standard_normal, static_argnums=0)


def evaluate_each(function: Function, variables: Variables, arguments: Sequence[Any]) -> list[Any]:
    """Override: compiled once for all arguments."""
    options = _known(_QUICKEST_COMPILATION) if len(arguments) <= _FEW_RUNS else None
    pure = purified(function, variables)
    compiled = jax.jit(lambda *given: pure(*given)[0], compiler_options=options)
    values = [variable.value for variable in variables]
    return [keras.tree.map_structure(np.asarray, compiled(values, each)) for each in arguments]


class Evaluator(contract.Evaluator):
    """Override: compiled once, or eager if the model runs eagerly; products in full precision.

    On a GPU, XLA may choose TF32 or float32 for each size of the batch, and results that differ so
    much look like those of a layer that counts its rows.
    """

    def _prepared(self, rows: list[Tensor], further: Any) -> Function:
        """Return the function to run, and note its effects."""

        def precise(*given: Any) -> Any:
            """Run the function."""
            with full_precision():
                return self._function(*given)

        if self._model.run_eagerly:
            return precise
        is_small = sum(math.prod(value.shape) for value in rows) < _MANY_NUMBERS
        options = _QUICKEST_COMPILATION if is_small else _QUICK_COMPILATION
        compiled = jax.jit(precise, compiler_options=_known(options))
        # Callbacks to Python, and references that are written to.
        effects = compiled.trace(rows, further).jaxpr.effects
        self.effects = Effects(writes=any("Debug" not in str(type(each)) for each in effects))
        return compiled

    def program(self, rows: list[Any], further: Any) -> str | None:
        """Override: the lowered function, with its constants."""
        if self._model.run_eagerly:
            return None
        self._run = self._run or self._prepared(rows, further)
        return str(self._run.lower(rows, further).as_text())


def free_memory() -> int:
    """Override: of the device, or else of the machine."""
    statistics = jax.devices()[0].memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return contract.free_memory()
    return int(statistics["bytes_limit"] - statistics["bytes_in_use"])


# Devices and processes.


def unsupported_distribution(model: keras.Model) -> str | None:
    """Override: Keras's own distributions alone keep one noise and one ledger."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        if jax.process_count() == 1:
            return None
        return (
            "Several JAX processes run, each of which would train a model of its own. Call "
            "`keras.distribution.set_distribution(keras.distribution.DataParallel())` before the "
            f"model is made. Received: {jax.process_count()} processes and no distribution"
        )
    if not isinstance(distribution, _SUPPORTED):
        return (
            "Private training runs under `keras.distribution.DataParallel` and `ModelParallel`. "
            f"Received: {type(distribution).__name__}"
        )
    if jax.process_count() > 1:
        if distribution.auto_shard_dataset:
            return (
                "Each process gives its own share of the data, which Keras must not divide again. "
                "Make the distribution with `auto_shard_dataset=False`. Received: "
                f"{type(distribution).__name__} with auto_shard_dataset=True"
            )
        if num_batch_shards() % jax.process_count() != 0:
            return (
                "The axis of the batch must have as many devices in each process, so that each "
                f"gives its own rows. Received: {num_batch_shards()} devices along "
                f"{distribution.batch_dim_name!r} in {jax.process_count()} processes"
            )
    devices = set(distribution.device_mesh.backend_mesh.devices.flat)
    elsewhere = [
        variable.path
        for variable in [*model.variables, *model.optimizer.variables]
        if set(variable.value.sharding.device_set) != devices
    ]
    if elsewhere:
        return (
            "The model or its optimizer was made before the distribution was set, so that its "
            "variables lie on other devices than the data will. Call "
            "`keras.distribution.set_distribution` first. Received: variables elsewhere: "
            f"{', '.join(elsewhere[:3])}{', ...' if len(elsewhere) > 3 else ''}"
        )
    return None


def num_batch_shards() -> int:
    """Override: the devices along the mesh's axis of the batch."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return int(mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)])


def on_all_shards(value: Tensor) -> Tensor:
    """Override: a constraint, without which XLA may gather slices of the shards."""
    if num_batch_shards() == 1:
        return value
    layout = keras.distribution.distribution().get_data_layout(value.shape)
    return keras.distribution.distribute_tensor(value, layout)


def num_processes() -> int:
    """Override: the processes of `jax.distributed`."""
    return jax.process_count()


def process_number() -> int:
    """Override: the number in `jax.distributed`."""
    return jax.process_index()


def gathered(array: np.ndarray) -> np.ndarray:
    """Override: sends bytes, since JAX would make 32 bits of 64."""
    array = np.asarray(array)
    if jax.process_count() == 1:
        return array[None]
    sent = np.frombuffer(array.tobytes(), np.uint8)
    received = np.asarray(multihost_utils.process_allgather(sent))
    return np.frombuffer(received.tobytes(), array.dtype).reshape(-1, *array.shape)


def is_whole_in_each_process(variable: keras.Variable) -> bool:
    """Override: False if `ModelParallel` divides it among processes."""
    return bool(variable.value.is_fully_replicated or variable.value.is_fully_addressable)
