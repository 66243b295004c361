"""What differs between TensorFlow, JAX and PyTorch, behind one set of names.

Each of `tensorflow.py`, `jax.py` and `torch.py` defines the same functions; the one that
matches `keras.backend.backend()` is re-exported here. Nothing else in the package imports a
framework. Private Keras names, where no public one serves, live in `keras_private.py`.
"""

import importlib

import keras

_module = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}")

Recording = _module.Recording
active_distribution = _module.active_distribution
after = _module.after
compiled_for_memory = _module.compiled_for_memory
computes_on_cpu = _module.computes_on_cpu
convolution_kernel_gradients = _module.convolution_kernel_gradients
differentiate_at_taps = _module.differentiate_at_taps
evaluate = _module.evaluate
evaluate_each = _module.evaluate_each
free_memory = _module.free_memory
gaussian = _module.gaussian
gradients_at = _module.gradients_at
gradients_of = _module.gradients_of
keep_variables = _module.keep_variables
loop_over_chunks = _module.loop_over_chunks
loops_in_python = _module.loops_in_python
memory_in_use = _module.memory_in_use
map_examples = _module.map_examples
map_units = _module.map_units
needs_fixed_shapes = _module.needs_fixed_shapes
outside_random_state = _module.outside_random_state
peak_memory = _module.peak_memory
per_example_layer_gradients = _module.per_example_layer_gradients
prefetched = _module.prefetched
quicker_call = _module.quicker_call
quicker_call_in_loop = _module.quicker_call_in_loop
slices_any_size = _module.slices_any_size
take_rows = _module.take_rows
trace = _module.trace
train_step = _module.train_step
trains_faster_side_by_side = _module.trains_faster_side_by_side
unsupported_compilation = _module.unsupported_compilation
zero_where_not = _module.zero_where_not

__all__ = [
    "Recording",
    "active_distribution",
    "after",
    "compiled_for_memory",
    "computes_on_cpu",
    "convolution_kernel_gradients",
    "differentiate_at_taps",
    "evaluate",
    "evaluate_each",
    "free_memory",
    "gaussian",
    "gradients_at",
    "gradients_of",
    "keep_variables",
    "loop_over_chunks",
    "loops_in_python",
    "map_examples",
    "map_units",
    "memory_in_use",
    "needs_fixed_shapes",
    "outside_random_state",
    "peak_memory",
    "per_example_layer_gradients",
    "prefetched",
    "quicker_call",
    "quicker_call_in_loop",
    "slices_any_size",
    "take_rows",
    "trace",
    "train_step",
    "trains_faster_side_by_side",
    "unsupported_compilation",
    "zero_where_not",
]
