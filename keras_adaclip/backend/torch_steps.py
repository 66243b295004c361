"""Steps, noise, evaluation and records on PyTorch, which runs eagerly."""

import contextlib
import functools
import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from keras_adaclip.backend import contract, keras_private
from keras_adaclip.backend.contract import Function, Tensor, Tensors, Variables

# Numbers that one thread draws at a time. They fill half a megabyte, a part of the cache.
_BLOCK = 1 << 17
# Of the bytes that are the state of PyTorch's generator for the CPU, a Mersenne Twister: two
# numbers that are 1 after seeding, and the words, 64 bits for each 32.
_NUM_WORDS, _IS_SEEDED, _WORDS = 624, slice(8, 16), slice(24, 24 + 8 * 624)
_MOST_RECORDS = 64
# Functions with which Python reads the numbers of a tensor. The record would repeat what it read.
_READS = {
    *("__array__", "__bool__", "__complex__", "__dlpack__", "__float__", "__index__", "__int__"),
    *("allclose", "data_ptr", "equal", "is_nonzero", "item", "numpy", "tolist"),
}
# Since PyTorch 2.9.
_HAS_PRECISIONS = hasattr(torch.backends.cuda.matmul, "fp32_precision")
keras_private.let_seed_generators_draw_outside()


def loops_in_python() -> bool:
    """Override: always."""
    return True


def computes_on_cpu() -> bool:
    """Override: the device of new tensors."""
    return bool(ops.convert_to_tensor(0.0).device.type == "cpu")


def trains_faster_side_by_side(num_parameters: int) -> bool:
    """Override: a small model, since clients share the overhead of each operation."""
    return not computes_on_cpu() or num_parameters <= 1 << 15


def unsupported_compilation(model: keras.Model) -> str | None:
    """Override: `torch.compile` would draw the noise once, while tracing."""
    if model.jit_compile:
        return (
            "`jit_compile=True` on the PyTorch backend would fix the noise when the step is "
            'traced. Compile with `jit_compile=False` (or "auto").'
        )
    return None


def unsupported_distribution(model: keras.Model) -> str | None:
    """Override: each process would draw noise and count steps of its own."""
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


@contextlib.contextmanager
def seeded_outside(seed: Tensor) -> Iterator[None]:
    """Override: PyTorch's generators, from which all layers of Keras draw within the context.

    That of the CPU keeps 32 bits of a seed, so its whole state is set.
    """
    secret, before = _secret(seed), torch.get_rng_state()
    state = np.zeros(before.numel(), np.uint8)
    state[_IS_SEEDED].view(np.int32)[:] = 1
    words = np.random.Philox(key=secret).random_raw(_NUM_WORDS // 2).view(np.uint32)
    state[_WORDS].view(np.uint64)[:] = words
    of_gpus = torch.random.fork_rng if torch.cuda.is_available() else contextlib.nullcontext
    with of_gpus(), keras_private.drawing_from_outside():
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(secret)
        torch.set_rng_state(torch.from_numpy(state))
        try:
            yield
        finally:
            torch.set_rng_state(before)


def evaluate_each(function: Function, variables: Variables, arguments: Sequence[Any]) -> list[Any]:
    """Override: PyTorch's generators get their state back.

    Unseeded dropout, which draws from them, starts from the same state with each argument.
    """

    def seeded(argument: Any) -> Any:
        """Call the function with generators in a state of their own."""
        torch.manual_seed(0)
        return function(argument)

    with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return contract.evaluate_each(seeded, variables, arguments)


class Evaluator(contract.Evaluator):
    """Override: eager calls, in full precision.

    In TF32, results of two sizes of the batch may differ as if a layer counted its rows.
    """

    def _prepared(self, rows: list[Tensor], further: Any) -> Function:
        """Return the function to run."""

        def precise(*given: Any) -> Any:
            """Run the function."""
            with full_precision():
                return evaluate_each(lambda _: self._function(*given), [], [()])[0]

        return precise


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Override: also on a CPU, where `torch.set_float32_matmul_precision` allows bfloat16.

    Convolutions and recurrent layers of cuDNN too, which use TF32 unless told otherwise.
    """
    before = [(part, name, getattr(part, name)) for part, name in _precisions()]
    products = None if _HAS_PRECISIONS else torch.get_float32_matmul_precision()
    if products:
        torch.set_float32_matmul_precision("highest")
    try:
        for part, name, _ in before:
            setattr(part, name, False if name == "allow_tf32" else "ieee")
        yield
    finally:
        for part, name, value in before:
            setattr(part, name, value)
        if products:
            torch.set_float32_matmul_precision(products)


def _precisions() -> list[tuple[Any, str]]:
    """Return the parts of PyTorch that round float32, each with the attribute that says so."""
    backends: Any = torch.backends
    cudnn, name = backends.cudnn, "fp32_precision"
    parts = [(backends.cuda.matmul, name), (backends.mkldnn.matmul, name)]
    try:
        # A layer may read it too, which is an error once the newer attributes differ from it.
        _ = cudnn.allow_tf32
    except RuntimeError:
        return [*parts, (cudnn.conv, name), (cudnn.rnn, name)]
    return [*(parts if _HAS_PRECISIONS else ()), (cudnn, "allow_tf32")]


def free_memory() -> int:
    """Override: of the GPU, or else of the machine."""
    if not torch.cuda.is_available():
        return contract.free_memory()
    return int(torch.cuda.mem_get_info()[0])


def trace(function: Function) -> None:
    """Override: runs it, and puts the state of random generators back."""
    with torch.no_grad(), torch.random.fork_rng():
        function()


def gaussian(shape: Sequence[int], key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Override: Philox, keyed with all 64 bits.

    PyTorch's generator for the CPU keeps only 32 bits of its seed, so on a CPU the noise comes from
    NumPy's Philox, whose counter starts at `(step, stream, block)`. The blocks are drawn side by
    side, since NumPy uses one core for each. PyTorch's generator for GPUs is a Philox with a 64-bit
    seed, which is a hash of the arguments.
    """
    if key.device.type == "cpu":
        draw, secret, number = np.empty(math.prod(shape), np.float32), _secret(key), int(step)

        def fill(block: int) -> None:
            """Draw the numbers of one block."""
            bits = np.random.Philox(key=secret, counter=[0, block, stream, number])
            _fill_with_normal(draw[block * _BLOCK : (block + 1) * _BLOCK], bits)

        num_blocks, num_threads = -(-draw.size // _BLOCK), torch.get_num_threads()
        if num_blocks <= 1 or num_threads == 1:
            list(map(fill, range(num_blocks)))
        else:
            list(_threads(os.getpid(), num_threads).map(fill, range(num_blocks)))
        return torch.from_numpy(draw.reshape(tuple(shape)))
    seed = int.from_bytes(_hash(key, step, stream), "little", signed=True)
    device_generator = torch.Generator(device=key.device).manual_seed(seed)
    return torch.randn(tuple(shape), generator=device_generator, device=key.device)


def _fill_with_normal(values: np.ndarray, bits: np.random.Philox) -> None:
    """Fill a vector with standard normal numbers, up to 6.7 in size.

        radius = sqrt(-2 log((n + 1/2) / 2^32)),  angle = 2 pi m / 2^32,  n and m of 32 bits

    NumPy's own method (the ziggurat) takes twice as long: it draws the numbers one by one.

    Reference:
        Box and Muller 1958, "A note on the generation of random normal deviates".
    """
    half = -(-values.size // 2)
    words = bits.random_raw(half).view(np.uint32).astype(np.float32)
    radius, angle = words[:half], words[half:]
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    angle *= np.float32(2.0 * math.pi * 2.0**-32)
    np.multiply(radius, np.cos(angle), out=values[:half])
    rest = values[half:]
    np.multiply(radius[: rest.size], np.sin(angle[: rest.size]), out=rest)


@functools.cache
def _threads(process: int, number: int) -> ThreadPoolExecutor:
    """Return threads to draw noise, the same in every step; a forked process starts its own."""
    return ThreadPoolExecutor(number)


def seed_of_step(key: Tensor, step: Tensor, stream: int) -> Tensor:
    """Override: a hash of the arguments."""
    return torch.from_numpy(np.frombuffer(_hash(key, step, stream), np.int32).copy())


def _secret(key: Tensor) -> int:
    """Return the 64 bits of a key."""
    first, second = (int(word) & 0xFFFFFFFF for word in key)
    return first | second << 32


def _hash(key: Tensor, step: Tensor, stream: int) -> bytes:
    """Return 8 bytes that depend on all arguments and do not reveal the key."""
    message = f"{_secret(key)}/{int(step)}/{stream}".encode()
    return hashlib.blake2b(message, digest_size=8).digest()


def train_step(model: keras.Model, step: Function, data: Any) -> dict[str, Tensor]:
    """Override: runs it without recording it for automatic differentiation."""
    with torch.no_grad():
        return step(model, data)


class Recording(contract.Recording):
    """Override: from the second call with the same shapes on, repeats the operations of the first.

    For small batches most of the time of a training step goes to Python code of Keras. A record
    calls the operations alone. Rounds of the federated benchmark's rows `cnn` and `mlp` take 350
    instead of 816 ms and 163 instead of 429 ms (20 clients of 60 examples, process time of one
    core).

    As for a compiled function, the results must follow from the given tensors, and random numbers
    must not come from a state that the function reads itself. A function is recorded on tensors
    that have shapes but no values. So one that asks for a value, or for a shape that follows from
    values, such as that of the rows that a mask keeps, is called each time; so is one that reads
    the value of another tensor, such as a variable that a callback sets.
    """

    def __init__(self) -> None:
        self._records: dict[Any, Function | None] = {}

    def clear(self) -> None:
        """Forget all records."""
        self._records.clear()

    def call(self, function: Function, values: Tensors) -> list[Tensor]:
        """Return `function(values)`, or the same from the record."""
        values = [value.detach() for value in values]
        key = tuple((value.shape, value.dtype, value.device) for value in values)
        if key not in self._records:
            if len(self._records) == _MOST_RECORDS:
                self.clear()
            devices = range(torch.cuda.device_count())
            with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._records[key], _ = contract.attempt(_recorded, function, values)
            return function(values)
        record = self._records[key]
        if record is None:
            return function(values)
        with torch.no_grad():
            return list(record(*values))


def _recorded(function: Function, values: list[Tensor]) -> Function | None:
    """Return the record, or None if the function cannot be recorded.

    A record must agree with the function on the given values and on others.
    """
    reads = _Reads()

    def watched(*given: Tensor) -> list[Tensor]:
        """Call the function, and notice if it reads a value."""
        with reads:
            return function(list(given))

    record = make_fx(watched, tracing_mode="fake")(*values)
    with torch.no_grad():
        for given in (values, [_changed(value) for value in values]):
            results = zip(record(*given), function(given), strict=True)
            if reads.are_made or not all(_is_same(*pair) for pair in results):
                return None
    return record


class _Reads(TorchFunctionMode):
    """Notices if Python reads the numbers of a tensor.

    Attributes:
        are_made: Whether it did.
    """

    are_made = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` unchanged."""
        if getattr(func, "__name__", None) in _READS:
            self.are_made = True
        return func(*args, **(kwargs or {}))


def _changed(value: Tensor) -> Tensor:
    """Return another value of the same dtype and range."""
    if value.dtype == torch.bool:
        return torch.logical_not(value)
    if value.dtype.is_floating_point:
        # Results that are not finite would agree with any others.
        return 0.75 * torch.nan_to_num(value, nan=0.5, posinf=1.0, neginf=-1.0) + 0.01
    return torch.flip(value, tuple(range(value.ndim)))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree in shape, dtype and values."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return bool(torch.equal(one, other))
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
