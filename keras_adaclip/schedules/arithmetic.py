"""The two worlds in which a schedule's formula is evaluated: the host, and compiled steps.

A formula is written once, over one of these. On the host it gives float64, in compiled steps it
gives float32 tensors; NumPy and `keras.ops` have the functions in between under the same names.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

Number = Any  # a NumPy scalar or a tensor


class Arithmetic(NamedTuple):
    """What formulas are written in.

    Args:
        functions: `numpy` or `keras.ops`.
        whole: turns a count into an integer of this world, for whole-number division.
        real: turns a count, or a sequence of numbers, into floats of this world.
    """

    functions: Any
    whole: Callable[[Any], Number]
    real: Callable[[Any], Number]


def _host_real(value: Any) -> Number:
    return np.float64(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)


HOST = Arithmetic(functions=np, whole=int, real=_host_real)

TENSORS = Arithmetic(
    functions=ops,
    whole=lambda value: ops.cast(value, "int32"),
    real=lambda value: ops.cast(value, "float32"),
)
