"""Examines the calls of a model's layers, without computing anything.

The model is traced on two rows and on three. This shows which arguments of a layer have a batch
axis, which layers draw random numbers, and how many numbers a forward pass writes.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch, repeated
from keras_adaclip.gradients.forward import call_model
from keras_adaclip.gradients.layers import GeneralRule, LayerRule
from keras_adaclip.gradients.layerwise import TapRecorder

# Layers that call the layers inside them in a loop, so that taps cannot leave these calls.
LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
_SIZES = (2, 3)


@dataclass
class Examination:
    """The results of an examination.

    Attributes:
        reason: Why no layer-wise plan is possible, None if one may be.
        batched: The positions of the batched arguments of each layer.
        is_random: Whether training draws random numbers.
        outputs_per_example: The numbers that the layers return for one example.
    """

    reason: str | None = None
    batched: dict[keras.layers.Layer, frozenset[int]] = field(default_factory=dict)
    is_random: bool = False
    outputs_per_example: int = 0


def examine_calls(
    model: keras.Model, rows: Batch, rules: Mapping[keras.layers.Layer, LayerRule]
) -> Examination:
    """Examine the calls of a model's layers.

    Args:
        model: A built model.
        rows: A few examples, as tensors.
        rules: The rule of each layer with trainable weights.
    """
    found = Examination()
    leading: dict[int, list[list[int | None]]] = {}
    called: list[keras.layers.Layer] = []
    random: set[keras.layers.Layer | None] = set()
    states = keras_private.seed_generator_states(model)
    held = [*model.variables, *model.metrics_variables]

    def forward(size: int) -> None:
        """Call the model on `size` rows, and note what happens."""
        batch = repeated(rows, size)
        with keras.StatelessScope([(variable, variable.value) for variable in held]) as scope:

            def random_state() -> list[Any]:
                """Return the states of all random generators."""
                seeds = [scope.get_current_value(state) for state in states]
                return [backend.outside_random_state(), *seeds]

            def watched(layer: keras.layers.Layer | None, call: Callable[..., Any]) -> Any:
                """Return a `call` that notes whether a random generator moved."""

                def watched_call(*args: Any, **kwargs: Any) -> Any:
                    """Call, and compare the states. An assigned seed is a new tensor."""
                    before = random_state()
                    outputs = call(*args, **kwargs)
                    after = random_state()
                    pairs = zip(before[1:], after[1:], strict=True)
                    if before[0] != after[0] or any(old is not new for old, new in pairs):
                        random.add(layer)
                    return outputs

                return watched_call

            recorder = TapRecorder()
            with counted_outputs(model) as outputs:
                calls = {
                    layer: watched(layer, layer.call)
                    for layer, rule in rules.items()
                    if isinstance(rule, GeneralRule)
                }
                with recorder.tapped(rules, calls):
                    watched(None, call_model)(model, batch.x, training=True)
        found.outputs_per_example = sum(outputs) // size
        recorded = recorder.calls(recorder.tensors, recorder.taps)
        called[:] = [call.layer for call in recorded]
        leading[size] = [
            [_leading(value) for value in keras.tree.flatten((call.args, call.kwargs))]
            for call in recorded
        ]

    for size in _SIZES:
        backend.trace(functools.partial(forward, size))

    found.is_random = bool(random)
    few, more = (leading[size] for size in _SIZES)
    if len(few) != len(more):
        found.reason = "the calls of its layers depend on the batch size"
        return found
    for layer, *sizes in zip(called, few, more, strict=True):
        pairs = list(enumerate(zip(*sizes, strict=True)))
        follows = frozenset(number for number, pair in pairs if pair == _SIZES)
        changes = {number for number, (small, large) in pairs if small != large}
        if changes - follows or not follows:
            found.reason = f"layer {layer.name!r} is called on something without the batch axis"
        elif found.batched.setdefault(layer, follows) != follows:
            found.reason = f"layer {layer.name!r} is called in different ways"
        elif isinstance(rules[layer], GeneralRule) and layer in random:
            found.reason = f"layer {layer.name!r} has weights and draws random numbers"
        if found.reason is not None:
            break
    return found


def layers_outside_loops(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers of a model, but of a loop only the loop itself."""
    inside: set[int] = set()
    for layer in keras_private.flatten_layers(model):
        if id(layer) not in inside:
            yield layer
            if isinstance(layer, LOOPS):
                inside.update(map(id, keras_private.flatten_layers(layer)))


@contextmanager
def counted_outputs(model: keras.Model) -> Iterator[list[int]]:
    """Count the numbers that layers return within the context.

    Only layers that call no other layer are counted, and loops as a whole.

    Args:
        model: A built model.

    Yields:
        A list to which the size of each output is appended when its layer is called.
    """
    sizes: list[int] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `call` that appends the sizes of its outputs."""

        def counted_call(*args: Any, **kwargs: Any) -> Any:
            """Call the layer and count."""
            outputs = call(*args, **kwargs)
            sizes.extend(_size(value) for value in keras.tree.flatten(outputs))
            return outputs

        return counted_call

    calls = {
        layer: counted(layer.call)
        for layer in layers_outside_loops(model)
        if isinstance(layer, LOOPS) or len(keras_private.flatten_layers(layer)) == 1
    }
    with keras_private.replaced_calls(calls):
        yield sizes


def _size(value: Any) -> int:
    """Return the number of elements of a tensor, counting an axis of unknown length as one."""
    if not ops.is_tensor(value) or getattr(value.shape, "rank", 0) is None:
        return 0
    return math.prod(1 if length is None else int(length) for length in value.shape)


def _leading(value: Any) -> int | None:
    """Return the first size of a tensor, None for anything else."""
    if not ops.is_tensor(value) or len(value.shape) == 0:
        return None
    return int(value.shape[0])
