"""How much memory a computation takes: the part of `tensorflow.py` that measures it."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_adaclip.backend import host_memory


def peak_memory(
    function: Callable[[Any], Any],
    variables: Sequence[keras.Variable],
    argument: Any,
    is_compiled: bool,
) -> int:
    """The most bytes in use while `function` runs, on the device or else on the machine.

    What is traced for it counts too; some of the memory would not be seen in a second run, since
    TensorFlow keeps it.

    Args:
        function: takes `argument`; reads and assigns `variables` only; returns tensors.
        variables: its variables.
        argument: a list of tensors.
        is_compiled: whether XLA compiles the step of training.
    """

    @tf.function(jit_compile=is_compiled)
    def traced(given: Any) -> Any:
        with keras.StatelessScope([(variable, variable.value) for variable in variables]):
            return function(given)

    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return host_memory.peak_during(lambda: traced(argument))
    tf.config.experimental.reset_memory_stats(devices[0].name)
    traced(argument)
    return int(tf.config.experimental.get_memory_info(devices[0].name)["peak"])


def memory_in_use() -> int:
    """The bytes in use, on the device or else on the machine."""
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return host_memory.in_use()
    return int(tf.config.experimental.get_memory_info(devices[0].name)["current"])


def free_memory() -> int:
    """The bytes that may still be taken; TensorFlow does not tell those of a GPU.

    Raises:
        ValueError: where the system does not tell.
    """
    if tf.config.list_logical_devices("GPU"):
        raise ValueError(
            'microbatch_size="auto" needs `memory_limit`, in bytes, where TensorFlow runs on a '
            "GPU: it does not tell how much memory that has."
        )
    return host_memory.free_memory()
