"""How XLA compiles private steps on a CPU: in the order that holds least in memory.

By default XLA's scheduler for CPUs begins whatever could run at the same time. Of a private step
that is much: each layer's part of the norms, then each layer's clipped sum. What they read is held
all at once. In the other order a step computes the same numbers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import jax

from keras_adaclip.backend import keras_private

_OPTION, _VALUE = "xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
# Either of them in XLA_FLAGS is the user's decision; the second is the older one.
_FLAGS = (_OPTION, "xla_cpu_enable_concurrency_optimized_scheduler")


def compiler_options() -> dict[str, str]:
    """What `jax.jit` is given as `compiler_options`; nothing where the user has decided."""
    is_decided = any(flag in os.environ.get("XLA_FLAGS", "") for flag in _FLAGS)
    if is_decided or jax.default_backend() != "cpu" or not _is_known(_OPTION, _VALUE):
        return {}
    return {_OPTION: _VALUE}


@contextmanager
def compiled_for_memory() -> Iterator[None]:
    """What Keras's trainer hands to `jax.jit` meanwhile is compiled with `compiler_options`."""
    options = compiler_options()
    if not options:
        yield
        return
    with keras_private.replaced_jit(partial(jax.jit, compiler_options=options)):
        yield


@cache
def _is_known(option: str, value: str) -> bool:
    """Options of the compiler come and go with its releases."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
