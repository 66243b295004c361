"""The functions of a clipping strategy, called with arrays of NumPy."""

import numpy as np
from keras import ops

from keras_adaclip.clipping import ParameterGroups, Release

SINGLE = ParameterGroups.single([(2,)])


def tensors(state):
    """A state of arrays as tensors, floats as float32."""

    def tensor(value):
        value = np.asarray(value)
        return ops.convert_to_tensor(
            value.astype("float32" if value.dtype.kind == "f" else value.dtype)
        )

    return {name: tensor(value) for name, value in state.items()}


def arrays(state):
    return {name: ops.convert_to_numpy(value) for name, value in state.items()}


def summed_statistics(strategy, state, norms, finite=None):
    """The summed statistics of units with norms of shape `(units, num_groups)`, float64."""
    norms = np.asarray(norms, np.float32)
    finite = np.ones(len(norms), bool) if finite is None else finite
    statistics = strategy.statistics(
        tensors(state), ops.convert_to_tensor(norms), ops.convert_to_tensor(finite)
    )
    if statistics is None:
        return np.zeros(0)
    return np.sum(ops.convert_to_numpy(statistics), axis=0, dtype=np.float64)


def updated(strategy, state, statistics, expected_units, means=(), mean_stddevs=(), step=1):
    """The next state as arrays."""
    release = Release(
        [ops.convert_to_tensor(np.asarray(mean, np.float32)) for mean in means],
        [ops.convert_to_tensor(np.float32(stddev)) for stddev in mean_stddevs],
        ops.convert_to_tensor(np.asarray(statistics, np.float32)),
        ops.convert_to_tensor(np.float32(expected_units)),
        ops.convert_to_tensor(np.int32(step)),
    )
    return arrays(strategy.update(tensors(state), release))
