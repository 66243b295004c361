"""Per-example gradients layer by layer, from one forward and one backward pass.

The total loss is the sum of the examples' losses, so the cotangent of a layer's output at example i
is the gradient of that example's loss alone. Backpropagation stops at tapped tensors. Weight
gradients are never formed for the batch: each layer's rule turns inputs and cotangents into
per-example gradients in their cheapest form.

During the forward pass the instance attribute `call` of a layer is replaced by a recording
function, in which the layer's rule places the taps. The layer's code is not changed.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.contributions import MOST_ROWS, BatchGradients
from keras_adaclip.gradients.forms import PerExampleGradient
from keras_adaclip.gradients.forward import Forward, call_model, per_example_losses, stateless
from keras_adaclip.gradients.layers import LayerRule, TappedCall
from keras_adaclip.gradients.outer_products import combined
from keras_adaclip.gradients.random_numbers import Draws

Tensor = Any
Rules = Mapping[keras.Layer, LayerRule]
Calls = Mapping[keras.Layer, Callable[..., Any]]


@dataclass(frozen=True)
class GradientPlan:
    """The rule of each layer, or the reason for differentiating one example after another.

    Args:
        rules: The rule of each layer with trainable weights. Empty if `looped_reason` is set.
        variables: The trainable variables of each of these layers.
        looped_reason: Why examples are differentiated one after another, None if the plan is
            layer-wise.
        batched: For each layer, as in `TappedCall`.
        repeated: Layers that are called on something without a batch axis, such as the positions in
            a text. They are called on a copy for each example.
        fast_calls: Faster equivalents of the `call` of some layers.
        draws: Whether a pass in training mode draws random numbers.
        forms: By the `id` of each variable that a pass uses, the form of its gradients, and the
            numbers that they take for one example; None if these depend on a length.
        numbers_per_example: Float32 numbers written for the norms and sums of one example, beyond
            those of forward and backward pass. 0 if not known.
        outputs_per_example: Numbers that the layers return for one example. 0 if not known.
        most_rows: Number of contributions that one float32 sum covers at most.
        unreached: Trainable variables of which the gradient of every made-up example is zero.
    """

    rules: Rules
    variables: Mapping[keras.Layer, list[keras.Variable]]
    looped_reason: str | None = None
    batched: Mapping[keras.Layer, frozenset[int]] = field(default_factory=dict)
    repeated: frozenset[keras.Layer] = frozenset()
    fast_calls: Calls = field(default_factory=dict)
    draws: bool = False
    forms: Mapping[int, tuple[str, int | None]] = field(default_factory=dict)
    numbers_per_example: int = 0
    outputs_per_example: int = 0
    most_rows: int = MOST_ROWS
    unreached: tuple[keras.Variable, ...] = ()

    @property
    def is_layerwise(self) -> bool:
        """Whether all examples are differentiated at once, not one after another."""
        return self.looped_reason is None


def looped_plan(reason: str) -> GradientPlan:
    """Return the plan of last resort.

    Args:
        reason: Why nothing faster is possible, for `check` and `private_summary`.
    """
    return GradientPlan({}, {}, reason)


class TapRecorder:
    """Collects the calls of tapped layers during one forward pass.

    Args:
        tap: Function that registers a tensor for differentiation and returns it.
        repeated: As in `GradientPlan`.
        num_rows: The number of examples in the pass.

    Attributes:
        tensors: For each call, the tensors among its arguments and those that its rule kept. They
            have to be returned from a pure function.
        taps: The tapped tensors so far.
    """

    def __init__(
        self,
        tap: Callable[[Tensor], Tensor] = lambda value: value,
        repeated: frozenset[keras.Layer] = frozenset(),
        num_rows: Any = None,
    ) -> None:
        self.tensors: list[list[Tensor]] = []
        self.taps: list[Tensor] = []
        self._tap, self._repeated, self._num_rows = tap, repeated, num_rows
        # For each call: the layer, its arguments, the places of tensors among them, and its taps.
        self._calls: list[tuple[keras.Layer, Any, list[int], list[int]]] = []

    def tapped(self, rules: Rules, calls: Calls) -> AbstractContextManager[None]:
        """Return a context in which layers record their calls.

        Args:
            rules: The layers to tap, with their rules.
            calls: Replacements of the `call` of some layers, tapped or not.
        """
        own = {layer: self._tapped_call(layer, rule, calls) for layer, rule in rules.items()}
        return keras_private.replaced_calls({**calls, **own})

    def calls(self, tensors: list[list[Tensor]], cotangents: list[Tensor]) -> list[TappedCall]:
        """Return the recorded calls.

        Args:
            tensors: The value of `tensors` after it was returned from the pure function.
            cotangents: The gradients with respect to the taps, in their order.
        """
        calls = []
        for (layer, structure, places, numbers), values in zip(self._calls, tensors, strict=True):
            flat = keras.tree.flatten(structure)
            for place, value in zip(places, values, strict=False):
                flat[place] = value
            args, kwargs = keras.tree.pack_sequence_as(structure, flat)
            own = [cotangents[number] for number in numbers]
            calls.append(TappedCall(layer, args, kwargs, own, kept=values[len(places) :]))
        return calls

    def _tapped_call(self, layer: keras.Layer, rule: LayerRule, calls: Calls) -> Callable[..., Any]:
        """Return a `call` that records its arguments and the tensors that the rule keeps."""
        original = calls.get(layer, layer.call)

        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the layer through its rule."""
            numbers: list[int] = []

            def tap(value: Tensor) -> Tensor:
                """Tap one tensor, and note the number of the tap."""
                numbers.append(len(self.taps))
                self.taps.append(value)
                return keras_private.attach_mask(self._tap(value), keras_private.mask_of(value))

            if layer in self._repeated:
                args, kwargs = keras.tree.map_structure(self._for_each_row, (args, kwargs))
            outputs, kept = rule.tapped_call(layer, original, tap, args, kwargs)
            flat = keras.tree.flatten((args, kwargs))
            places = [place for place, value in enumerate(flat) if ops.is_tensor(value)]
            self._calls.append((layer, (args, kwargs), places, numbers))
            self.tensors.append([*(flat[place] for place in places), *kept])
            return outputs

        return call

    def _for_each_row(self, value: Any) -> Any:
        """Return a tensor repeated for each example, in the place of a first axis of size 1."""
        if not ops.is_tensor(value) or len(value.shape) == 0:
            return value
        value = value if value.shape[0] == 1 else value[None]
        return ops.repeat(value, self._num_rows, axis=0)


def per_example_gradients(
    model: keras.Model,
    batch: Batch,
    plan: GradientPlan,
    training: bool = True,
    draws: Draws | None = None,
    shares: Tensor = 1.0,
) -> tuple[BatchGradients, Forward]:
    """Return the gradients of all examples, and the results of the forward pass.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        plan: A layer-wise plan.
        training: The mode of the forward pass.
        draws: The random numbers of layers; None leaves them to their seed generators.
        shares: Factors of the losses of the examples.
    """
    recorders: list[TapRecorder] = []

    def forward(tap: Any) -> tuple[Tensor, Any]:
        """Return the total loss, and everything else that the forward pass yields."""
        recorder = TapRecorder(tap, plan.repeated, batch.num_rows * batch.num_copies)
        recorders.append(recorder)
        with stateless(model, draws):
            with recorder.tapped(plan.rules, plan.fast_calls):
                y_pred = call_model(model, batch.x, training)
            losses, increments = per_example_losses(model, batch, y_pred)
        marks = [keras_losses.marks_of(value) for value in keras.tree.flatten(y_pred)]
        total = ops.sum(losses * shares) / batch.num_copies
        return total, (recorder.tensors, y_pred, losses, increments, marks)

    variables = [*model.variables, *model.metrics_variables]
    further, cotangents = backend.differentiate_at_taps(forward, variables)
    tensors, y_pred, losses, increments, marks = further
    for value, own in zip(keras.tree.flatten(y_pred), marks, strict=True):
        keras_losses.attach_marks(value, own)

    parts = gradients_of_calls(plan, recorders[-1].calls(tensors, cotangents), batch.num_copies)
    trainable = model.trainable_variables
    gradients = [parts.get(id(variable)) for variable in trainable]
    shown = Forward(y_pred, losses, increments).of_units(batch.num_copies)
    return BatchGradients(trainable, gradients, batch.num_rows, plan.most_rows), shown


def gradients_of_calls(
    plan: GradientPlan, calls: list[TappedCall], num_copies: int = 1
) -> dict[int, PerExampleGradient]:
    """Return the gradients of each variable that was used, by the variable's id.

    Args:
        plan: A layer-wise plan.
        calls: The calls of the plan's layers, with cotangents.
        num_copies: The number of consecutive rows that each unit has.
    """
    parts: dict[int, list[PerExampleGradient]] = {}
    for call in calls:
        call.batched = plan.batched.get(call.layer)
        own = plan.variables[call.layer]
        for variable, part in zip(own, plan.rules[call.layer].gradients(call, own), strict=True):
            if part is not None:
                merged = part.merged(num_copies) if num_copies > 1 else part
                parts.setdefault(id(variable), []).append(merged)
    return {key: combined(uses) for key, uses in parts.items()}
