"""Examines the calls of a model's layers, without computing anything.

The model is traced on two rows and on three. This shows which arguments of a layer have a batch
axis, which layers draw random numbers, and how many numbers a forward pass writes.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.batch import Batch, repeated
from keras_adaclip.gradients.forward import call_model, stateless
from keras_adaclip.gradients.layers import GeneralRule, LayerRule, TappedCall, rule_for
from keras_adaclip.gradients.layerwise import Calls, GradientPlan, TapRecorder, looped_plan

# Layers that call the layers inside them in a loop, so that taps cannot leave these calls.
LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)
_SIZES = (2, 3)


def unproven_plan(model: keras.Model, rows: Batch) -> tuple[GradientPlan, bool]:
    """Return the plan that an examination suggests, without a proof. No loss is needed.

    Args:
        model: A built model.
        rows: Two or three examples, as tensors.

    Returns:
        The plan, and whether training draws random numbers.
    """
    rules, variables = assign_rules(model)
    traces: list[list[TappedCall]] = []
    num_outputs: list[int] = []
    random: set[keras.Layer | None] = set()
    states = keras_private.seed_generator_states(model)

    def forward(size: int) -> None:
        """Call the model on `size` rows, and note what happens."""
        batch = repeated(rows, size)
        with stateless(model) as scope:

            def random_state() -> list[Any]:
                """Return the states of all random generators."""
                seeds = [scope.get_current_value(state) for state in states]
                return [backend.outside_random_state(), *seeds]

            def watched(layer: keras.Layer | None, call: Callable[..., Any]) -> Any:
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
        num_outputs.append(sum(outputs) // size)
        traces.append(recorder.calls(recorder.tensors, recorder.taps))

    for size in _SIZES:
        backend.trace(functools.partial(forward, size))

    is_random = bool(random)
    few, more = traces
    if len(few) != len(more):
        return looped_plan("the calls of its layers depend on the batch size"), is_random
    batched: dict[keras.Layer, frozenset[int]] = {}
    for one, other in zip(few, more, strict=True):
        layer, reason = one.layer, None
        sizes = [map(_leading, keras.tree.flatten((c.args, c.kwargs))) for c in (one, other)]
        pairs = list(enumerate(zip(*sizes, strict=True)))
        follows = frozenset(number for number, pair in pairs if pair == _SIZES)
        changes = {number for number, (small, large) in pairs if small != large}
        if changes - follows or not follows:
            reason = "is called on something without the batch axis"
        elif batched.setdefault(layer, follows) != follows:
            reason = "is called with batches in different arguments"
        elif isinstance(rules[layer], GeneralRule) and layer in random:
            reason = "has weights and draws random numbers"
        if reason is not None:
            return looped_plan(f"layer {layer.name!r} {reason}"), is_random
    plan = GradientPlan(
        rules,
        variables,
        batched=batched,
        fast_calls=fast_calls_of(model),
        outputs_per_example=num_outputs[0],
    )
    return plan, is_random


def assign_rules(
    model: keras.Model,
) -> tuple[dict[keras.Layer, LayerRule], dict[keras.Layer, list[keras.Variable]]]:
    """Return the rule and the trainable weights of each layer that has any."""
    rules: dict[keras.Layer, LayerRule] = {}
    variables: dict[keras.Layer, list[keras.Variable]] = {}
    for layer in layers_outside_loops(model):
        if isinstance(layer, LOOPS):
            own = list(layer.trainable_variables)
        else:
            own = keras_private.own_trainable_variables(layer)
        if own:
            rules[layer] = rule_for(layer) or GeneralRule()
            variables[layer] = own
    return rules, variables


def fast_calls_of(model: keras.Model, in_loop: bool = False) -> Calls:
    """Return faster equivalents of the `call` of a model's layers.

    Args:
        model: A built model.
        in_loop: Whether the calls happen in a loop inside the step.
    """
    calls = {each: backend.fast_call(each, in_loop) for each in keras_private.flatten_layers(model)}
    return {layer: call for layer, call in calls.items() if call is not None}


def layers_outside_loops(model: keras.Model) -> Iterator[keras.Layer]:
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
