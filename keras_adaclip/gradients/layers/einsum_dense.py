"""`EinsumDense`, of which attention layers are made: a matrix product with named axes.

Each letter of the equation is one of: the batch; a position (inputs and outputs have it); an input
(inputs and kernel); an output (kernel and outputs); a group (all three); or summed over beforehand
(the inputs alone).
"""

import itertools
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import (
    GroupedOuterProduct,
    Materialized,
    OuterProduct,
    PerExampleGradient,
)
from keras_adaclip.gradients.layers.broadcasting import summed_to
from keras_adaclip.gradients.layers.low_rank import in_float32, scale_of
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register

Tensor = Any
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register(keras.layers.EinsumDense)
class EinsumDenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed to its shape."""

    taps_activation = True
    covers_low_rank = True

    def covers(self, layer: keras.layers.Layer) -> bool:
        """Whether the first axis of inputs and outputs is the batch, and no letter stands twice."""
        equation = _Equation.of(layer)
        if equation is None or (
            layer.bias is not None and len(layer.bias.shape) >= len(equation.outputs)
        ):
            return False
        return not layer.lora_enabled or equation.ends_free

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias, or of the two factors of LoRA and the bias."""
        equation, layer = _Equation.of(call.layer), call.layer
        if equation is None:
            raise ValueError(f"No rule covers {call.layer.name}: {call.layer.equation!r}")
        cotangents = ops.cast(call.cotangents[0], "float32")

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            if variable is layer.bias:
                return Materialized(summed_to(cotangents, variable.shape))
            if layer.lora_enabled and variable is layer.lora_kernel_a:
                narrow = equation.through_last(cotangents, in_float32(layer.lora_kernel_b), layer)
                return equation.kernel_gradient(call.inputs, narrow, variable.shape)
            if layer.lora_enabled and variable is layer.lora_kernel_b:
                found = equation.product(call.inputs, in_float32(layer.lora_kernel_a), layer)
                return equation.last_gradient(found, cotangents, variable.shape)
            return equation.kernel_gradient(call.inputs, cotangents, variable.shape)

        return [gradient(variable) for variable in variables]


@dataclass(frozen=True)
class _Equation:
    """The axes of inputs, kernel and outputs, one letter each."""

    inputs: str
    kernel: str
    outputs: str

    @classmethod
    def of(cls, layer: keras.layers.Layer) -> "_Equation | None":
        """The layer's equation with its dots spelled out, None where no matrix product is in it."""
        left, outputs = layer.equation.split("->")
        inputs, kernel = left.split(",")
        num_dots = layer.input_spec.ndim - len(inputs.replace("...", ""))
        unused = "".join(letter for letter in _LETTERS if letter not in layer.equation)
        inputs, outputs = (text.replace("...", unused[:num_dots]) for text in (inputs, outputs))
        equation = cls(inputs, kernel, outputs)
        return equation if equation._is_batched() else None

    def _is_batched(self) -> bool:
        texts = (self.inputs, self.kernel, self.outputs)
        return (
            all(text.isalpha() and len(set(text)) == len(text) for text in texts)
            and self.inputs[0] == self.outputs[0]
            and self.inputs[0] not in self.kernel
            and set(self.outputs) <= set(self.inputs + self.kernel)
            and set(self.kernel) <= set(self.inputs + self.outputs)
        )

    @property
    def ends_free(self) -> bool:
        """Whether the kernel's last axis is one of the outputs alone, as LoRA's factors want it."""
        return self.kernel[-1] in self.outputs and self.kernel[-1] not in self.inputs

    def through_last(self, cotangents: Tensor, second: Tensor, layer: Any) -> Tensor:
        """Cotangents of the outputs as those of what LoRA's second factor is multiplied with."""
        axis = self.outputs.index(self.kernel[-1])
        narrow = ops.tensordot(cotangents, second, axes=[[axis], [1]])
        return scale_of(layer) * ops.moveaxis(narrow, -1, axis)

    def product(self, inputs: Tensor, first: Tensor, layer: Any) -> Tensor:
        """What LoRA's second factor is multiplied with, its axis in the place of the last one."""
        equation = f"{self.inputs},{self.kernel}->{self.outputs}"
        return scale_of(layer) * ops.einsum(equation, ops.cast(inputs, "float32"), first)

    def last_gradient(self, found: Tensor, cotangents: Tensor, shape: Any) -> OuterProduct:
        """The gradient of LoRA's second factor: outer products over all axes but the last one."""
        last = self.kernel[-1]
        positions = "".join(x for x in self.outputs[1:] if x != last)
        blocks = [
            ops.squeeze(
                _arranged(value, self.outputs, self.outputs[0], "", positions, last), axis=1
            )
            for value in (found, cotangents)
        ]
        return OuterProduct(blocks[0], blocks[1], shape)

    def kernel_gradient(self, inputs: Tensor, cotangents: Tensor, shape: Any) -> PerExampleGradient:
        """The gradient of the kernel."""
        batch = self.inputs[0]
        groups = "".join(x for x in self.kernel if x in self.inputs and x in self.outputs)
        bound = "".join(x for x in self.kernel if x not in self.outputs)
        free = "".join(x for x in self.kernel if x not in self.inputs)
        positions = "".join(x for x in self.outputs[1:] if x not in self.kernel)
        blocks = [
            _arranged(inputs, self.inputs, batch, groups, positions, bound),
            _arranged(cotangents, self.outputs, batch, groups, positions, free),
        ]
        if not groups and self.kernel in (bound + free, free + bound):
            flat = [ops.squeeze(block, axis=1) for block in blocks]
            if self.kernel != bound + free:
                flat.reverse()
            return OuterProduct(flat[0], flat[1], shape)
        canonical = groups + bound + free
        size_of = dict(zip(self.kernel, shape, strict=True))
        return GroupedOuterProduct(
            blocks[0],
            blocks[1],
            shape,
            sizes=[size_of[letter] for letter in canonical],
            order=[canonical.index(letter) for letter in self.kernel],
        )


def _arranged(
    value: Tensor, letters: str, batch: str, groups: str, positions: str, last: str
) -> Tensor:
    """From axes in the order of `letters` to `(batch_size, groups, positions, last)`."""
    wanted = batch + groups + positions + last
    superfluous = tuple(axis for axis, letter in enumerate(letters) if letter not in wanted)
    if superfluous:
        value = ops.sum(ops.cast(value, "float32"), axis=superfluous)
        letters = "".join(letter for letter in letters if letter in wanted)
    order = [letters.index(letter) for letter in wanted]
    if order != sorted(order):
        value = ops.transpose(value, order)
    sizes = ops.shape(value)
    starts = (1, 1 + len(groups), 1 + len(groups) + len(positions), len(wanted))
    merged = [_product(sizes[i:j]) for i, j in itertools.pairwise(starts)]
    return ops.reshape(value, (-1, *merged))


def _product(sizes: Any) -> Any:
    """The product of sizes, of which TensorFlow may know some only when the step runs."""
    product = 1
    for size in sizes:
        product = product * size
    return product
