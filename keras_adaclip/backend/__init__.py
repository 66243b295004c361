"""What differs between TensorFlow, JAX and PyTorch, behind one set of names.

Each of `tensorflow.py`, `jax.py` and `torch.py` defines the same functions; the one that
matches `keras.backend.backend()` is re-exported here. Nothing else in the package imports a
framework. Private Keras names, where no public one serves, live in `keras_private.py`.
"""

import importlib

import keras

_module = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}")

after = _module.after
applied_as_they_are = _module.applied_as_they_are
array_of = _module.array_of
compiled_for_cpu = _module.compiled_for_cpu
computes_on_cpu = _module.computes_on_cpu
convolution_kernel_gradients = _module.convolution_kernel_gradients
differentiate_at_taps = _module.differentiate_at_taps
evaluate = _module.evaluate
evaluate_each = _module.evaluate_each
Evaluator = _module.Evaluator
fit_arguments = _module.fit_arguments
free_memory = _module.free_memory
full_precision = _module.full_precision
gathered = _module.gathered
gaussian = _module.gaussian
gradients_at = _module.gradients_at
gradients_of = _module.gradients_of
is_traced = _module.is_traced
is_whole_in_each_process = _module.is_whole_in_each_process
keep_variables = _module.keep_variables
logs_for_keras = _module.logs_for_keras
loop_over_chunks = _module.loop_over_chunks
loops_in_python = _module.loops_in_python
map_examples = _module.map_examples
map_units = _module.map_units
may_join_batches = _module.may_join_batches
memory_in_use = _module.memory_in_use
needs_fixed_shapes = _module.needs_fixed_shapes
num_batch_shards = _module.num_batch_shards
num_processes = _module.num_processes
num_replicas = _module.num_replicas
number_of_replica = _module.number_of_replica
on_all_shards = _module.on_all_shards
outside_random_state = _module.outside_random_state
peak_memory = _module.peak_memory
per_example_layer_gradients = _module.per_example_layer_gradients
process_number = _module.process_number
quicker_call = _module.quicker_call
quicker_call_in_loop = _module.quicker_call_in_loop
Recording = _module.Recording
scope_of_devices = _module.scope_of_devices
slices_any_size = _module.slices_any_size
sums_of_replicas = _module.sums_of_replicas
take_rows = _module.take_rows
trace = _module.trace
train_step = _module.train_step
trains_faster_side_by_side = _module.trains_faster_side_by_side
unsupported_compilation = _module.unsupported_compilation
unsupported_distribution = _module.unsupported_distribution
zero_where_not = _module.zero_where_not

__all__ = [
    "Recording",
    "after",
    "applied_as_they_are",
    "array_of",
    "compiled_for_cpu",
    "computes_on_cpu",
    "convolution_kernel_gradients",
    "differentiate_at_taps",
    "evaluate",
    "evaluate_each",
    "fit_arguments",
    "free_memory",
    "full_precision",
    "gathered",
    "gaussian",
    "gradients_at",
    "gradients_of",
    "is_traced",
    "is_whole_in_each_process",
    "keep_variables",
    "logs_for_keras",
    "loop_over_chunks",
    "loops_in_python",
    "map_examples",
    "map_units",
    "may_join_batches",
    "memory_in_use",
    "needs_fixed_shapes",
    "num_batch_shards",
    "num_processes",
    "num_replicas",
    "number_of_replica",
    "on_all_shards",
    "outside_random_state",
    "peak_memory",
    "per_example_layer_gradients",
    "process_number",
    "quicker_call",
    "quicker_call_in_loop",
    "scope_of_devices",
    "slices_any_size",
    "sums_of_replicas",
    "take_rows",
    "trace",
    "train_step",
    "trains_faster_side_by_side",
    "unsupported_compilation",
    "unsupported_distribution",
    "zero_where_not",
]
