"""`LSTM`, `GRU` and `SimpleRNN`: a recurrence over inputs that were projected beforehand.

A step of each cell depends on `z_t = x_t W + b` and on `h_(t-1) U`. Here `z` is computed for all
steps at once and tapped, and the loop adds what comes from the state. The backward pass through
the loop then gives `delta_t = dL/dz_t` of all steps, and the gradients are

    W: sum_t outer(x_t, delta_t)      U: sum_t outer(h_(t-1), delta_t)      b: sum_t delta_t

as those of `Dense` over T positions (Goodfellow 2015, "Efficient per-example gradient
computations"). A masked step keeps the state, so its `delta_t` is zero.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register

Tensor = Any


class RecurrentRule(LayerRule):
    """Input kernel, recurrent kernel and bias from the cotangents of the projected inputs.

    Attributes:
        layer_class: the layer that the rule is for.
        cell_class: the cell of that layer.
    """

    layer_class: ClassVar[type[keras.layers.RNN]]
    cell_class: ClassVar[type[keras.layers.Layer]]

    @abc.abstractmethod
    def step(
        self, cell: Any, weights: Sequence[Tensor], projected: Tensor, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """The states after one time step, the output first.

        Args:
            cell: the layer's cell.
            weights: what `recurrent_weights` gave.
            projected: the step's `x W + b`, of shape `(batch_size, gates * units)`.
            states: the states before the step, each of shape `(batch_size, units)`.
        """

    def input_bias(self, cell: Any) -> Tensor:
        """What is added to `x W` of a cell with a bias."""
        return cell.bias

    def recurrent_weights(self, cell: Any) -> list[Tensor]:
        """The weights that `step` needs; constants, as no tap asks for their cotangents."""
        return [_constant(cell.recurrent_kernel)]

    def gates(self, cell: Any, projected: Tensor, before: Tensor) -> list[Tensor]:
        """What `recurrent_product` needs to know besides the states.

        Args:
            cell: the layer's cell.
            projected: tensor of shape `(batch_size, time, gates * units)`.
            before: the output of the step before each, of shape `(batch_size, time, units)`.
        """
        return []

    def recurrent_product(
        self, cell: Any, before: Tensor, cotangents: Tensor, gates: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The factors whose products, summed over time, are the recurrent kernel's gradient."""
        return before, cotangents

    def bias_gradient(self, cell: Any, cotangents: Tensor, recurrent: Tensor) -> Tensor:
        """The gradient of the bias.

        Args:
            cell: the layer's cell.
            cotangents: those of the projected inputs.
            recurrent: those of `h U`, as `recurrent_product` gave them.
        """
        return ops.sum(cotangents, axis=1)

    def covers(self, layer: keras.layers.Layer) -> bool:
        """Only Keras's own cells; no state from batch to batch; no dropout but that of inputs."""
        cell = layer.cell
        if type(cell) is not self.cell_class or cell.compute_dtype != layer.compute_dtype:
            return False
        if type(layer).inner_loop is not self.layer_class.inner_loop or layer.stateful:
            return False
        if layer.zero_output_for_mask and layer.unroll:  # Keras's backends do not agree on it.
            return False
        # Implementation 1 draws one mask for each gate.
        if cell.recurrent_dropout or (cell.dropout and getattr(cell, "implementation", 2) == 1):
            return False
        weights = [cell.kernel, cell.recurrent_kernel, cell.bias]
        return all(
            any(variable is weight for weight in weights) for variable in layer.trainable_variables
        )

    def tapped_call(
        self,
        layer: keras.layers.Layer,
        call: Callable[..., Any],
        tap: Callable[[Tensor], Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, list[Tensor]]:
        """Runs the layer's recurrence on projected inputs; keeps inputs, states and gates."""
        inputs, initial_state, mask, training = _arguments(*args, **kwargs)
        cell = layer.cell
        if training and 0.0 < cell.dropout < 1.0:
            inputs = inputs * cell.get_dropout_mask(inputs[:, 0, :])[:, None, :]
            cell.reset_dropout_mask()
        states = _states(layer, inputs, initial_state)
        # The loop goes through time, so projections that lie in time's order need no copy.
        projected = ops.matmul(ops.transpose(inputs, (1, 0, 2)), cell.kernel)
        if cell.use_bias:
            projected = projected + self.input_bias(cell)
        projected = ops.transpose(tap(projected), (1, 0, 2))

        def in_order(value: Tensor) -> Tensor:
            return ops.flip(value, axis=1) if layer.go_backwards else value

        mask = None if mask is None else in_order(_flat_mask(mask))
        loop = keras.layers.RNN(
            _StepCell(cell, functools.partial(self.step, cell, self.recurrent_weights(cell))),
            return_sequences=True,
            return_state=True,
            unroll=layer.unroll or backend.loops_in_python(),
            dtype=layer.dtype_policy,
            name="recurrence",
        )
        hidden, *final = loop.call(in_order(projected), initial_state=states, mask=mask)

        before = in_order(_before_each_step(states[0], ops.stop_gradient(hidden), mask))
        gates = self.gates(cell, ops.stop_gradient(projected), before)
        return _outputs(layer, hidden, final, mask), [inputs, before, *gates]

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of both kernels and the bias."""
        cell = call.layer.cell
        inputs, before, *gates = [ops.cast(value, "float32") for value in call.kept]
        cotangents = ops.cast(ops.transpose(call.cotangents[0], (1, 0, 2)), "float32")
        before, recurrent = self.recurrent_product(cell, before, cotangents, gates)

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            if variable is cell.kernel:
                return OuterProduct(inputs, cotangents, variable.shape)
            if variable is cell.recurrent_kernel:
                return OuterProduct(before, recurrent, variable.shape)
            return Materialized(self.bias_gradient(cell, cotangents, recurrent))

        return [gradient(variable) for variable in variables]


@register(keras.layers.SimpleRNN)
class SimpleRNNRule(RecurrentRule):
    """`h_t = activation(z_t + h_(t-1) U)`."""

    layer_class = keras.layers.SimpleRNN
    cell_class = keras.layers.SimpleRNNCell

    def step(
        self, cell: Any, weights: Sequence[Tensor], projected: Tensor, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """One state, the output."""
        output = projected + ops.matmul(states[0], weights[0])
        return [output if cell.activation is None else cell.activation(output)]


@register(keras.layers.LSTM)
class LSTMRule(RecurrentRule):
    """Input gate, forget gate, candidate and output gate from `z_t + h_(t-1) U`."""

    layer_class = keras.layers.LSTM
    cell_class = keras.layers.LSTMCell

    def step(
        self, cell: Any, weights: Sequence[Tensor], projected: Tensor, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Two states, the output and the carry."""
        hidden, carry = states
        gates = ops.split(projected + ops.matmul(hidden, weights[0]), 4, axis=1)
        carry = cell.recurrent_activation(gates[1]) * carry
        carry = carry + cell.recurrent_activation(gates[0]) * cell.activation(gates[2])
        return [cell.recurrent_activation(gates[3]) * cell.activation(carry), carry]


@register(keras.layers.GRU)
class GRURule(RecurrentRule):
    """Update gate u, reset gate r and candidate; the reset gate lies before or after U.

    After it (`reset_after=True`) the candidate is `activation(z_t + r_t (h_(t-1) U + c))` with a
    bias c of its own, so the cotangent of `h U + c` is that of `z` times r. Before it the candidate
    is `activation(z_t + (r_t h_(t-1)) U)`, so its columns of U meet `r h` in place of `h`.
    """

    layer_class = keras.layers.GRU
    cell_class = keras.layers.GRUCell

    def input_bias(self, cell: Any) -> Tensor:
        """With `reset_after` the bias has a second row, that of the recurrent product."""
        return cell.bias[0] if cell.reset_after else cell.bias

    def recurrent_weights(self, cell: Any) -> list[Tensor]:
        """U and c; or the columns of U for the gates and those for the candidate."""
        kernel = _constant(cell.recurrent_kernel)
        if not cell.reset_after:
            return [kernel[:, : 2 * cell.units], kernel[:, 2 * cell.units :]]
        return [kernel, _constant(cell.bias)[1]] if cell.use_bias else [kernel]

    def step(
        self, cell: Any, weights: Sequence[Tensor], projected: Tensor, states: Sequence[Tensor]
    ) -> list[Tensor]:
        """One state, the output."""
        (hidden,) = states
        update, reset, candidate = ops.split(projected, 3, axis=1)
        recurrent = ops.matmul(hidden, weights[0])
        if cell.reset_after and cell.use_bias:
            recurrent = recurrent + weights[1]
        recurrent = ops.split(recurrent, 3 if cell.reset_after else 2, axis=1)
        update = cell.recurrent_activation(update + recurrent[0])
        reset = cell.recurrent_activation(reset + recurrent[1])
        if cell.reset_after:
            candidate = candidate + reset * recurrent[2]
        else:
            candidate = candidate + ops.matmul(reset * hidden, weights[1])
        return [update * hidden + (1 - update) * cell.activation(candidate)]

    def gates(self, cell: Any, projected: Tensor, before: Tensor) -> list[Tensor]:
        """The reset gate of every step, of shape `(batch_size, time, units)`."""
        columns = slice(cell.units, 2 * cell.units)
        kernel, *others = self.recurrent_weights(cell)
        reset = projected[:, :, columns] + ops.matmul(before, kernel[:, columns])
        if cell.reset_after and cell.use_bias:
            reset = reset + others[0][columns]
        return [cell.recurrent_activation(reset)]

    def recurrent_product(
        self, cell: Any, before: Tensor, cotangents: Tensor, gates: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The cotangent of the candidate times r; or the states, and behind them r times these."""
        (reset,) = gates
        of_gates = cotangents[:, :, : 2 * cell.units]
        of_candidate = cotangents[:, :, 2 * cell.units :]
        if cell.reset_after:
            return before, ops.concatenate([of_gates, reset * of_candidate], axis=2)
        blocks = [
            ops.concatenate([of_gates, ops.zeros_like(of_candidate)], axis=2),
            ops.concatenate([ops.zeros_like(of_gates), of_candidate], axis=2),
        ]
        states = ops.concatenate([before, reset * before], axis=1)
        return states, ops.concatenate(blocks, axis=1)

    def bias_gradient(self, cell: Any, cotangents: Tensor, recurrent: Tensor) -> Tensor:
        """One row, or a second one for the recurrent product."""
        of_inputs = ops.sum(cotangents, axis=1)
        if not cell.reset_after:
            return of_inputs
        return ops.stack([of_inputs, ops.sum(recurrent, axis=1)], axis=1)


class _StepCell:
    """A cell without input projection, in the form that `keras.layers.RNN` takes.

    Args:
        cell: the cell of the layer.
        step: function of projected inputs and states that returns the new states.
    """

    def __init__(self, cell: Any, step: Callable[[Tensor, Sequence[Tensor]], list[Tensor]]) -> None:
        self.state_size, self.output_size = cell.state_size, cell.output_size
        self.compute_dtype = cell.compute_dtype
        self._step = step

    def call(self, inputs: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Output and new states of one step."""
        new_states = self._step(inputs, states)
        return new_states[0], new_states

    __call__ = call


def _arguments(
    sequences: Tensor, initial_state: Any = None, mask: Any = None, training: Any = False
) -> tuple[Tensor, Any, Any, Any]:
    """The arguments of `keras.layers.RNN.call`, however they were passed."""
    return sequences, initial_state, mask, training


def _constant(variable: keras.Variable) -> Tensor:
    return ops.stop_gradient(ops.convert_to_tensor(variable))


def _states(layer: keras.layers.Layer, inputs: Tensor, initial_state: Any) -> list[Tensor]:
    if initial_state is None:
        initial_state = layer.get_initial_state(batch_size=ops.shape(inputs)[0])
    return [
        ops.convert_to_tensor(state, dtype=layer.cell.compute_dtype)
        for state in keras.tree.flatten(initial_state)
    ]


def _flat_mask(mask: Any) -> Tensor:
    """The first mask, a bool tensor of shape `(batch_size, time)`."""
    mask = ops.cast(keras.tree.flatten(mask)[0], "bool")
    return mask if len(mask.shape) == 2 else ops.any(mask, axis=-1)


def _before_each_step(initial: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The output that each step starts from, of the shape of `hidden`."""
    first = initial[:, None, :]
    before = ops.concatenate([first, hidden[:, :-1, :]], axis=1)
    if mask is None:
        return before
    # As long as every step was masked the state is the initial one, but Keras puts out zeros.
    steps = ops.cast(mask, "int32")
    seen = ops.cumsum(steps, axis=1) > steps
    return ops.where(seen[:, :, None], before, first)


def _outputs(
    layer: keras.layers.Layer, hidden: Tensor, final: list[Tensor], mask: Tensor | None
) -> Any:
    """What the layer returns."""
    if mask is not None and layer.zero_output_for_mask:
        hidden = ops.where(mask[:, :, None], hidden, ops.zeros_like(hidden))
    output = hidden
    if not layer.return_sequences:
        output = final[0] if mask is None else hidden[:, -1, :]
    return (output, *final) if layer.return_state else output
