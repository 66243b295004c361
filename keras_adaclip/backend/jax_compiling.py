"""How XLA compiles private steps on a CPU: holding little in memory, with wide vectors.

By default XLA's scheduler for CPUs begins whatever could run at the same time. Of a private step
that is much: each layer's part of the norms, then each layer's clipped sum. What they read is held
all at once. In the other order a step computes the same numbers.

By default XLA computes on 256 bits at a time on processors that have 512 too. Making noise is a
hundred operations a number on little memory, and takes nearly half the time with the wider ones.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import jax

from keras_adaclip.backend import keras_private

_OPTIONS = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_prefer_vector_width": "512",
}
# Its older name.
_ALSO_KNOWN_AS = {"xla_cpu_scheduler_type": "xla_cpu_enable_concurrency_optimized_scheduler"}


def compiler_options() -> dict[str, str]:
    """What `jax.jit` is given as `compiler_options`, without what `XLA_FLAGS` names."""
    if jax.default_backend() != "cpu":
        return {}
    decided = os.environ.get("XLA_FLAGS", "")
    return {
        option: value
        for option, value in _OPTIONS.items()
        if option not in decided
        and _ALSO_KNOWN_AS.get(option, option) not in decided
        and _is_known(option, value)
    }


@contextmanager
def compiled_for_cpu() -> Iterator[None]:
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
