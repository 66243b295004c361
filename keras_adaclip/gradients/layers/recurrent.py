"""`LSTM`, `GRU` and `SimpleRNN`: a recurrence over inputs that are projected beforehand.

A step of each cell depends on `z_t = x_t W + b` and on `h_(t-1) U`. Here `z` is computed for all
steps at once and tapped, and the loop adds the part that depends on the state. The backward pass
through the loop gives `delta_t = dL/dz_t` of all steps, and the gradients are

    W: sum_t outer(x_t, delta_t)      U: sum_t outer(h_(t-1), delta_t)      b: sum_t delta_t

like those of `Dense` over T positions (Goodfellow 2015, "Efficient per-example gradient
computations"). A masked step keeps the state, so its `delta_t` is zero.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.rule import (
    Call,
    Gradients,
    LayerRule,
    Tap,
    TappedCall,
    register,
)
from keras_adaclip.gradients.outer_products import OuterProduct

Tensor = Any
Tensors = Sequence[Tensor]


class RecurrentRule(LayerRule):
    """Gradients of both kernels and the bias from the cotangents of the projected inputs.

    Attributes:
        layer_class: The layer that the rule is for.
        cell_class: The cell of that layer.
    """

    layer_class: ClassVar[type[keras.layers.RNN]]
    cell_class: ClassVar[type[keras.Layer]]

    @abc.abstractmethod
    def step(self, cell: Any, inputs: Tensor, recurrent: Tensor, states: Tensors) -> list[Tensor]:
        """Return the states after one time step, the output first.

        Args:
            cell: The layer's cell.
            inputs: The step's `x W + b`, of shape `(batch_size, gates * units)`.
            recurrent: The step's `h_(t-1) U`, of the same shape, with a bias if it has its own.
            states: The states before the step, each of shape `(batch_size, units)`.
        """

    def recurrent_cotangents(
        self, cell: Any, projected: Tensor, before: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Return the cotangents of `h_(t-1) U`, by default those of the projected inputs.

        Args:
            cell: The layer's cell.
            projected: Tensor of shape `(batch_size, time, gates * units)`.
            before: The output of the previous step, of shape `(batch_size, time, units)`.
            cotangents: Cotangents of the projected inputs.
        """
        return cotangents

    def covers(self, layer: Any) -> bool:
        """Return whether the layer has Keras's own cell, no kept state, and input dropout only."""
        cell = layer.cell
        is_own = type(layer).inner_loop is self.layer_class.inner_loop
        is_own = is_own and type(cell) is self.cell_class
        # Backends differ in the outputs of masked steps.
        keeps_state = layer.stateful or (layer.zero_output_for_mask and layer.unroll)
        # Implementation 1 draws one dropout mask for each gate.
        drops_gates = cell.dropout and getattr(cell, "implementation", 2) == 1
        if keeps_state or drops_gates or cell.recurrent_dropout:
            return False
        weights = {id(weight) for weight in (cell.kernel, cell.recurrent_kernel, cell.bias)}
        has_own_weights = weights.issuperset(map(id, layer.trainable_variables))
        return is_own and has_own_weights and cell.compute_dtype == layer.compute_dtype

    def tapped_call(
        self, layer: Any, call: Call, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Tensor]]:
        """Run the layer with a loop over projected inputs.

        Keep inputs, outputs before each step, and projections.
        """
        cell, kept = layer.cell, list[Tensor]()
        changes = {"return_sequences": True, "go_backwards": False, "zero_output_for_mask": False}
        changes["unroll"] = layer.unroll or backend.loops_in_python()
        is_reversed, sets_zeros = layer.go_backwards, layer.zero_output_for_mask

        def in_order(value: Tensor) -> Tensor:
            """Reverse the time axis if the layer goes backwards."""
            return ops.flip(value, axis=1) if is_reversed else value

        def inner_loop(
            sequences: Tensor, initial_state: Tensors, mask: Any, training: bool = False
        ) -> tuple[Tensor, Tensor, Tensors]:
            """Return the last output, all outputs and the last states."""
            if training and 0.0 < cell.dropout < 1.0:
                sequences = sequences * cell.get_dropout_mask(sequences[:, 0, :])[:, None, :]
            # The loop runs over time, so projections in the order of time need no copy.
            projected = ops.matmul(ops.transpose(sequences, (1, 0, 2)), cell.kernel)
            if cell.use_bias:
                # A bias of two rows is one of the inputs and one of the recurrent product.
                projected = projected + (cell.bias[0] if len(cell.bias.shape) == 2 else cell.bias)
            projected = ops.transpose(tap(projected), (1, 0, 2))
            weights = _recurrent_weights(cell)

            def step(inputs: Tensor, states: Tensors) -> tuple[Tensor, list[Tensor]]:
                """Return the output and the states after one time step."""
                after = self.step(cell, inputs, _recurrent(states[0], weights), states)
                return after[0], after

            if mask is not None:
                mask = in_order(_flat_mask(mask))
            changed = [(layer, name, value) for name, value in changes.items()]
            with keras_private.replaced_attributes([*changed, (layer, "cell", step)]):
                loop = keras.layers.RNN.inner_loop
                _, outputs, states = loop(layer, in_order(projected), initial_state, mask)
            before = _before_each_step(initial_state[0], ops.stop_gradient(outputs), mask)
            kept[:] = [sequences, in_order(before), ops.stop_gradient(projected)]
            if mask is None:
                return states[0], outputs, states
            if sets_zeros:
                outputs = ops.where(mask[:, :, None], outputs, ops.zeros_like(outputs))
            return outputs[:, -1, :], outputs, states

        with keras_private.replaced_attributes([(layer, "inner_loop", inner_loop)]):
            return call(*args, **kwargs), kept

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of both kernels and the bias."""
        cell: Any = call.layer.cell
        inputs, before, projected = [ops.cast(value, "float32") for value in call.kept]
        cotangents = ops.cast(ops.transpose(call.cotangents[0], (1, 0, 2)), "float32")
        recurrent = self.recurrent_cotangents(cell, projected, before, cotangents)

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            """Return the gradient of one variable."""
            if variable is cell.kernel:
                return OuterProduct(inputs, cotangents, variable.shape)
            if variable is cell.recurrent_kernel:
                return OuterProduct(before, recurrent, variable.shape)
            sums = [ops.sum(cotangents, axis=1), ops.sum(recurrent, axis=1)]
            return Materialized(ops.stack(sums, axis=1) if len(variable.shape) == 2 else sums[0])

        return [gradient(variable) for variable in variables]


@register(keras.layers.SimpleRNN)
class SimpleRNNRule(RecurrentRule):
    """`h_t = activation(z_t + h_(t-1) U)`."""

    layer_class = keras.layers.SimpleRNN
    cell_class = keras.layers.SimpleRNNCell

    def step(self, cell: Any, inputs: Tensor, recurrent: Tensor, states: Tensors) -> list[Tensor]:
        """Return one state, the output."""
        output = inputs + recurrent
        return [output if cell.activation is None else cell.activation(output)]


@register(keras.layers.LSTM)
class LSTMRule(RecurrentRule):
    """Input gate, forget gate, candidate and output gate from `z_t + h_(t-1) U`."""

    layer_class = keras.layers.LSTM
    cell_class = keras.layers.LSTMCell

    def step(self, cell: Any, inputs: Tensor, recurrent: Tensor, states: Tensors) -> list[Tensor]:
        """Return two states, the output and the carry."""
        gates = ops.split(inputs + recurrent, 4, axis=1)
        carry = cell.recurrent_activation(gates[1]) * states[1]
        carry = carry + cell.recurrent_activation(gates[0]) * cell.activation(gates[2])
        return [cell.recurrent_activation(gates[3]) * cell.activation(carry), carry]


@register(keras.layers.GRU)
class GRURule(RecurrentRule):
    """Update gate, reset gate r and candidate, with the reset gate after U (`reset_after=True`).

    The candidate is `activation(z_t + r_t (h_(t-1) U + c))` with a bias c of its own, so the
    cotangent of its `h U + c` is the cotangent of `z` times r.
    """

    layer_class = keras.layers.GRU
    cell_class = keras.layers.GRUCell

    def covers(self, layer: Any) -> bool:
        """Return whether the reset gate comes after U, and what all recurrent layers need holds."""
        return bool(layer.cell.reset_after) and super().covers(layer)

    def step(self, cell: Any, inputs: Tensor, recurrent: Tensor, states: Tensors) -> list[Tensor]:
        """Return one state, the output."""
        parts, products = ops.split(inputs, 3, axis=1), ops.split(recurrent, 3, axis=1)
        update = cell.recurrent_activation(parts[0] + products[0])
        reset = cell.recurrent_activation(parts[1] + products[1])
        candidate = cell.activation(parts[2] + reset * products[2])
        return [update * states[0] + (1 - update) * candidate]

    def recurrent_cotangents(
        self, cell: Any, projected: Tensor, before: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Return the cotangents with those of the candidate times the reset gate."""
        weights = [ops.cast(weight, "float32") for weight in _recurrent_weights(cell)]
        products = ops.split(_recurrent(before, weights), 3, axis=2)
        reset = cell.recurrent_activation(ops.split(projected, 3, axis=2)[1] + products[1])
        *gates, candidate = ops.split(cotangents, 3, axis=2)
        return ops.concatenate([*gates, reset * candidate], axis=2)


def _recurrent_weights(cell: Any) -> list[Tensor]:
    """Return U and, if it has a bias of its own, that bias; constants, since they have no taps."""
    weights = [ops.stop_gradient(ops.convert_to_tensor(cell.recurrent_kernel))]
    if cell.use_bias and len(cell.bias.shape) == 2:
        weights.append(ops.stop_gradient(ops.convert_to_tensor(cell.bias))[1])
    return weights


def _recurrent(hidden: Tensor, weights: Tensors) -> Tensor:
    """Return `h U`, plus the bias if there is one, for outputs of shape `(..., units)`."""
    product = ops.matmul(hidden, weights[0])
    return product + weights[1] if len(weights) == 2 else product


def _flat_mask(mask: Any) -> Tensor:
    """Return the first mask, a bool tensor of shape `(batch_size, time)`."""
    mask = ops.cast(keras.tree.flatten(mask)[0], "bool")
    return mask if len(mask.shape) == 2 else ops.any(mask, axis=-1)


def _before_each_step(initial: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output that each step starts from, of the shape of `hidden`."""
    first = initial[:, None, :]
    before = ops.concatenate([first, hidden[:, :-1, :]], axis=1)
    if mask is None:
        return before
    # While every step was masked, the state is the initial one, but Keras outputs zeros.
    steps = ops.cast(mask, "int32")
    seen = ops.cumsum(steps, axis=1) > steps
    return ops.where(seen[:, :, None], before, first)
