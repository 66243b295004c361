"""The PyTorch side of `keras_adaclip.backend`; the docstrings are in `tensorflow.py`."""

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from keras_adaclip.backend import host_memory, torch_calls, torch_convolutions, torch_recording
from keras_adaclip.backend.direct_calls import Effects

Tensor = Any

convolution_kernel_gradients = torch_convolutions.convolution_kernel_gradients
quicker_call = torch_calls.quicker_call
quicker_call_in_loop = torch_calls.quicker_call
Recording = torch_recording.Recording


def needs_fixed_shapes(model: keras.Model) -> bool:
    """PyTorch runs eagerly: any number of rows will do."""
    return False


def slices_any_size(model: keras.Model) -> bool:
    """PyTorch runs eagerly: the last chunk of a batch may be smaller."""
    return True


def is_traced(value: Any) -> bool:
    """PyTorch runs eagerly."""
    return False


def loops_in_python() -> bool:
    """PyTorch runs eagerly."""
    return True


def computes_on_cpu() -> bool:
    """Whether steps run on the CPU, where what matters is how memory is written."""
    return bool(ops.convert_to_tensor(0.0).device.type == "cpu")


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Few weights lie in the cache for many clients, who share what each operation costs."""
    return not computes_on_cpu() or num_parameters <= 1 << 15


def compiled_for_cpu() -> contextlib.AbstractContextManager[None]:
    """PyTorch runs eagerly."""
    return contextlib.nullcontext()


def unsupported_compilation(model: keras.Model) -> str | None:
    """Under `torch.compile` the noise would be drawn once, while tracing."""
    if model.jit_compile:
        return (
            "`jit_compile=True` on the PyTorch backend would fix the noise when the step is "
            'traced. Compile with `jit_compile=False` (or "auto").'
        )
    return None


def unsupported_distribution(model: keras.Model) -> str | None:
    """Several processes would each draw a noise and count steps of their own."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    size = torch.distributed.get_world_size()
    if size == 1:
        return None
    return (
        "On PyTorch private training runs in one process: each process of a group would draw a "
        "noise of its own and count its own steps. Train over several devices with the JAX backend "
        "(`keras.distribution`) or the TensorFlow backend (`tf.distribute`). Received: "
        f"torch.distributed with {size} processes"
    )


def num_batch_shards() -> int:
    """One device holds all."""
    return 1


def on_all_shards(value: Tensor) -> Tensor:
    """There is one device."""
    return value


def num_processes() -> int:
    """Private training runs in one."""
    return 1


def process_number() -> int:
    """The only one."""
    return 0


def gathered(array: np.ndarray) -> np.ndarray:
    """That of the only process."""
    return np.asarray(array)[None]


def logs_for_keras(logs: Any) -> Any:
    """As they are."""
    return logs


def num_replicas(model: keras.Model) -> int:
    """There is one replica."""
    return 1


def is_whole_in_each_process(variable: keras.Variable) -> bool:
    """There is one process."""
    return True


def may_join_batches(model: keras.Model, data: Any) -> bool:
    """Batches stay what they are."""
    return False


def number_of_replica() -> int:
    """There is one replica."""
    return 0


def scope_of_devices(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """There is one device."""
    return contextlib.nullcontext()


def sums_of_replicas(tensors: Sequence[Tensor]) -> list[Tensor]:
    """There is one replica."""
    return list(tensors)


def applied_as_they_are(
    optimizer: keras.optimizers.Optimizer,
) -> contextlib.AbstractContextManager[None]:
    """There is one optimizer."""
    return contextlib.nullcontext()


def array_of(variable: keras.Variable) -> np.ndarray:
    """The value of a variable."""
    return np.asarray(ops.convert_to_numpy(variable.value))


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Runs `function(tap)` and differentiates its loss by every tensor that passed `tap`."""
    taps: list[Tensor] = []

    def tap(value: Tensor) -> Tensor:
        if not value.requires_grad:
            value = value.detach().requires_grad_()
        taps.append(value)
        return value

    with torch.enable_grad():
        loss, further = function(tap)
    gradients: Sequence[Tensor | None] = [None] * len(taps)
    if taps and loss.requires_grad:
        gradients = torch.autograd.grad(loss, taps, allow_unused=True)
    further = keras.tree.map_structure(_detach, further)
    return further, [
        _or_zeros(gradient, tap) for gradient, tap in zip(gradients, taps, strict=True)
    ]


def map_examples(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to the rows of `values` and stacks what it returns."""
    try:
        return list(torch.vmap(function)(values))
    except RuntimeError:  # As in `map_units`.
        return _one_by_one(function, values)


def _one_by_one(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    rows = [function([value[row] for value in values]) for row in range(len(values[0]))]
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def after(value: Tensor, other: Tensor) -> Tensor:
    """`value`: PyTorch computes in the order of the program."""
    return value


def take_rows(rows: Tensor, places: Any) -> Tensor:
    """`rows[:, places]`, of shape `(batch_size, *places.shape, channels)`."""
    return ops.take(rows, places, axis=1)


def zero_where_not(kept: Tensor, values: Tensor) -> Tensor:
    """`values` with zeros in the rows that are not `kept`, which may hold NaN.

    Most often there are none, and on a CPU it costs nothing to know that.
    """
    if kept.device.type == "cpu" and bool(torch.all(kept)):
        return values
    return ops.where(ops.reshape(kept, (-1, *([1] * (len(values.shape) - 1)))), values, 0.0)


def outside_random_state() -> bytes:
    """The states of PyTorch's own generators, from which Keras's dropout draws."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return b"".join(state.cpu().numpy().tobytes() for state in states)


def per_example_layer_gradients(
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    values: Sequence[Tensor],
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of `sum(function(values, arguments) * cotangents)` by `values`, by example."""

    def inner_product(
        values: Sequence[Tensor], inputs: Sequence[Tensor], cotangent: Sequence[Tensor]
    ) -> Tensor:
        outputs = function(values, [value.unsqueeze(0) for value in inputs])
        return sum(
            (output * weight.unsqueeze(0)).sum()
            for output, weight in zip(outputs, cotangent, strict=True)
        )

    gradient = torch.func.grad(inner_product)
    values = [value.detach() for value in values]
    with torch.enable_grad(), warnings.catch_warnings():
        # Where an operation has no rule for batches, PyTorch takes one example after another.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            gradients = torch.func.vmap(gradient, in_dims=(None, 0, 0))(
                values, list(arguments), list(cotangents)
            )
        except RuntimeError:  # Not every operation has a `vmap`, convolutions of Keras among them.
            singles = [
                gradient(values, [value[row] for value in arguments], [g[row] for g in cotangents])
                for row in range(len(arguments[0]))
            ]
            gradients = [torch.stack(parts) for parts in zip(*singles, strict=True)]
    return list(gradients)


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]],
    by: Sequence[keras.Variable],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Gradients of the scalar loss that `function` returns, by the variables in `by`."""
    values = [variable.value for variable in by]
    for value in values:
        # Values that stand in for a variable's own are no parameters.
        if value.is_leaf:
            value.requires_grad_()
    with torch.enable_grad():
        loss, further = function()
    gradients: Sequence[Tensor | None] = [None] * len(values)
    if values and loss.requires_grad:
        gradients = torch.autograd.grad(loss, values, allow_unused=True)
    further = keras.tree.map_structure(_detach, further)
    return further, [
        _or_zeros(gradient, value) for gradient, value in zip(gradients, values, strict=True)
    ]


def gradients_at(
    function: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], values: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Gradients of a scalar loss by tensors, also inside of `map_units`."""
    with torch.enable_grad():
        gradients, further = torch.func.grad(function, has_aux=True)(list(values))
    return list(gradients), further


def map_units(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Applies `function` to every unit at once, or to one after another where it cannot."""
    try:
        return list(torch.func.vmap(function, randomness="different")(values))
    except RuntimeError:  # Some losses decide by values (hinge), which `vmap` cannot.
        return _one_by_one(function, values)


def loop_over_chunks(
    body: Callable[[int, list[Tensor]], list[Tensor]],
    carry: list[Tensor],
    num_chunks: Tensor | int,
    variables: Sequence[keras.Variable],
    constants: Sequence[keras.Variable] = (),
) -> list[Tensor]:
    """Runs `carry = body(index, carry)` for index 0 to `num_chunks` - 1."""
    for index in range(int(num_chunks)):
        carry = body(index, carry)
    return carry


def evaluate(function: Callable[[], Any], variables: Sequence[keras.Variable]) -> Any:
    """Runs `function` outside training, discards its updates, returns NumPy arrays.

    PyTorch's own generators, from which unseeded dropout draws, start from one state each time
    and end as they were.
    """
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        keras.StatelessScope([(variable, variable.value) for variable in variables]),
    ):
        torch.manual_seed(0)
        result = function()
    return keras.tree.map_structure(lambda value: value.detach().cpu().numpy(), result)


def evaluate_each(
    function: Callable[[Any], Any], variables: Sequence[keras.Variable], arguments: Sequence[Any]
) -> list[Any]:
    """`evaluate` for several arguments of `function`."""
    return [evaluate(functools.partial(function, argument), variables) for argument in arguments]


class Evaluator:
    """Runs a function as the steps of a model run: eagerly."""

    def __init__(self, function: Callable[[list[Tensor], Any], Any], model: keras.Model) -> None:
        self.effects = Effects()
        self._function = function

    def __call__(self, rows: list[Any], further: Any) -> Any:
        """What the function returns, as NumPy arrays."""
        rows, further = keras.tree.map_structure(ops.convert_to_tensor, (rows, further))
        return evaluate(lambda: self._function(rows, further), [])


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Within it, products of float32 matrices are float32, where a GPU would take TF32.

    On a CPU, `torch.set_float32_matmul_precision("medium")` lets them be bfloat16.
    """
    parts: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if not all(hasattr(part, "fp32_precision") for part in parts):  # before PyTorch 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    precisions = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(parts, precisions, strict=True):
            part.fp32_precision = precision


def peak_memory(
    function: Callable[[Any], Any],
    variables: Sequence[keras.Variable],
    argument: Any,
    is_compiled: bool,
) -> int:
    """The most bytes in use while `function` runs, on the device or else on the machine."""

    def run() -> None:
        evaluate(lambda: function(argument), variables)

    if not torch.cuda.is_available():
        return host_memory.peak_during(run)
    torch.cuda.reset_peak_memory_stats()
    run()
    return int(torch.cuda.max_memory_allocated())


def memory_in_use() -> int:
    """The bytes in use, on the device or else on the machine."""
    if not torch.cuda.is_available():
        return host_memory.in_use()
    return int(torch.cuda.memory_allocated())


def free_memory() -> int:
    """The bytes that may still be taken on the device."""
    if not torch.cuda.is_available():
        return host_memory.free_memory()
    return int(torch.cuda.mem_get_info()[0])


def trace(function: Callable[[], Any]) -> None:
    """Runs `function` for what Python sees of it, such as shapes; results are dropped."""
    with torch.no_grad(), torch.random.fork_rng():
        function()


def fit_arguments(
    batches: keras.utils.PyDataset, rows: Any, model: keras.Model, num_open_axes: Any = None
) -> dict[str, Any]:
    """`batches`, prepared as Keras prepares them."""
    return {"x": batches}


@contextlib.contextmanager
def keep_variables(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Makes sure that an error leaves every variable with a value."""
    yield


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Standard normal float32 noise, a function of `(key, step, stream)` alone.

    PyTorch's generator for the CPU keeps 32 bits of its seed, too few for privacy, so the CPU
    draws come from NumPy's Philox, keyed with all 64 bits; its counter starts at
    `(step, stream)`. The GPU generator is a Philox with a 64-bit seed.
    """
    words = key.detach().cpu().numpy().astype(np.int64) & 0xFFFFFFFF
    secret = int(words[0]) | int(words[1]) << 32
    if key.device.type == "cpu":
        generator = np.random.Generator(
            np.random.Philox(key=secret, counter=[0, 0, stream, int(step)])
        )
        return torch.from_numpy(generator.standard_normal(tuple(shape), dtype=np.float32))
    message = f"{secret}/{int(step)}/{stream}".encode()
    seed = int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little", signed=True)
    device_generator = torch.Generator(device=key.device).manual_seed(seed)
    return torch.randn(tuple(shape), generator=device_generator, device=key.device)


def train_step(
    model: keras.Model, step: Callable[[keras.Model, Any], dict[str, Tensor]], data: Any
) -> dict[str, Tensor]:
    """Runs `step(model, data)` without recording it for automatic differentiation."""
    with torch.no_grad():
        return step(model, data)


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.detach()
