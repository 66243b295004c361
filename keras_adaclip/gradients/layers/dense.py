"""`Dense` and `EinsumDense`, which attention layers consist of: matrix products with named axes.

Each letter of the equation is one of: the batch; a position (in inputs and outputs); an input (in
inputs and kernel); an output (in kernel and outputs); a group (in all three); or an axis of the
inputs alone, which is summed first. The gradient of the kernel W is a sum of outer products over
the positions (Goodfellow 2015, "Efficient per-example gradient computations").

With LoRA, `W + s A B` takes the place of W, and A and B have smaller gradients: with cotangents c
they are those of `x` and `s c B^T`, and of `s x A` and `c` (Hu et al. 2022, "LoRA: Low-rank
adaptation of large language models").
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients import forms
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, register

Tensor = Any
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register(keras.layers.EinsumDense)
class EinsumDenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed to its shape."""

    taps_activation = True
    covers_low_rank = True

    def covers(self, layer: Any) -> bool:
        """Return whether the first axis is the batch, and no letter occurs twice in one term."""
        equation = _Equation.of(layer, getattr(layer.input_spec, "ndim", None) or 2)
        if layer.bias is not None and len(layer.bias.shape) >= len(equation.outputs):
            return False
        return equation.is_batched and (equation.ends_free or not layer.lora_enabled)

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of kernel and bias, or of the two factors of LoRA and the bias."""
        layer: Any = call.layer
        equation = _Equation.of(layer, len(call.inputs.shape))
        cotangents = ops.cast(call.cotangents[0], "float32")
        scale = layer.lora_alpha / layer.lora_rank if layer.lora_enabled else 1.0

        def gradient(variable: keras.Variable) -> forms.PerExampleGradient:
            """Return the gradient of one variable."""
            if variable is layer.bias:
                return forms.Materialized(_summed_to(cotangents, variable.shape))
            if layer.lora_enabled and variable is layer.lora_kernel_a:
                factor = ops.cast(layer.lora_kernel_b.value, "float32")
                axis = equation.outputs.index(equation.kernel[-1])
                narrow = ops.tensordot(cotangents, factor, axes=[[axis], [1]])
                narrow = scale * ops.moveaxis(narrow, -1, axis)
                return equation.kernel_gradient(call.inputs, narrow, variable.shape)
            if layer.lora_enabled and variable is layer.lora_kernel_b:
                first = ops.cast(layer.lora_kernel_a.value, "float32")
                narrow = ops.einsum(str(equation), ops.cast(call.inputs, "float32"), first)
                second = equation.of_last_axis()
                return second.kernel_gradient(scale * narrow, cotangents, variable.shape)
            return equation.kernel_gradient(call.inputs, cotangents, variable.shape)

        return [gradient(variable) for variable in variables]


@register(keras.layers.Dense)
class DenseRule(EinsumDenseRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed over them."""


@dataclass(frozen=True)
class _Equation:
    """The axes of inputs, kernel and outputs, one letter each."""

    inputs: str
    kernel: str
    outputs: str

    @classmethod
    def of(cls, layer: Any, ndim: int) -> "_Equation":
        """Return the layer's equation without dots, for inputs with `ndim` axes."""
        text = getattr(layer, "equation", "...a,ab->...b")
        left, outputs = text.split("->")
        inputs, kernel = left.split(",")
        num_dots = ndim - len(inputs.replace("...", ""))
        unused = "".join(letter for letter in _LETTERS if letter not in text)
        inputs, outputs = (text.replace("...", unused[:num_dots]) for text in (inputs, outputs))
        return cls(inputs, kernel, outputs)

    @property
    def is_batched(self) -> bool:
        """Whether the equation is a batch of matrix products, batch first."""
        texts = (self.inputs, self.kernel, self.outputs)
        return (
            all(text.isalpha() and len(set(text)) == len(text) for text in texts)
            and self.inputs[0] == self.outputs[0]
            and self.inputs[0] not in self.kernel
            and set(self.outputs) <= set(self.inputs + self.kernel)
            and set(self.kernel) <= set(self.inputs + self.outputs)
        )

    def __str__(self) -> str:
        """Return the equation in the notation of `einsum`."""
        return f"{self.inputs},{self.kernel}->{self.outputs}"

    @property
    def ends_free(self) -> bool:
        """Whether the kernel's last axis is an output only, as LoRA's factors need it."""
        return self.kernel[-1] in self.outputs and self.kernel[-1] not in self.inputs

    def of_last_axis(self) -> "_Equation":
        """Return the equation of LoRA's second factor, which maps the rank to the last axis."""
        last = self.kernel[-1]
        rank = next(letter for letter in _LETTERS if letter not in str(self))
        return _Equation(self.outputs.replace(last, rank), rank + last, self.outputs)

    def kernel_gradient(
        self, inputs: Tensor, cotangents: Tensor, shape: Any
    ) -> forms.PerExampleGradient:
        """Return the gradient of the kernel."""
        groups = "".join(x for x in self.kernel if x in self.inputs and x in self.outputs)
        bound = "".join(x for x in self.kernel if x not in self.outputs)
        free = "".join(x for x in self.kernel if x not in self.inputs)
        positions = "".join(x for x in self.outputs[1:] if x not in self.kernel)
        blocks = [
            _arranged(inputs, self.inputs, groups, positions, bound),
            _arranged(cotangents, self.outputs, groups, positions, free),
        ]
        if not groups and self.kernel in (bound + free, free + bound):
            flat = [ops.squeeze(block, axis=1) for block in blocks]
            if self.kernel != bound + free:
                flat.reverse()
            return forms.OuterProduct(flat[0], flat[1], shape)
        canonical = groups + bound + free
        sizes = [shape[self.kernel.index(letter)] for letter in canonical]
        order = [canonical.index(letter) for letter in self.kernel]
        return forms.GroupedOuterProduct(blocks[0], blocks[1], shape, sizes, order)


def _arranged(value: Tensor, letters: str, groups: str, positions: str, last: str) -> Tensor:
    """Rearrange axes named `letters`, batch first, to `(batch_size, groups, positions, last)`."""
    wanted = letters[0] + groups + positions + last
    superfluous = tuple(axis for axis, letter in enumerate(letters) if letter not in wanted)
    if superfluous:
        value = ops.sum(ops.cast(value, "float32"), axis=superfluous)
        letters = "".join(letter for letter in letters if letter in wanted)
    order = [letters.index(letter) for letter in wanted]
    if order != sorted(order):
        value = ops.transpose(value, order)
    sizes = ops.shape(value)
    starts = (1, 1 + len(groups), 1 + len(groups) + len(positions), len(wanted))
    merged = [math.prod(sizes[i:j]) for i, j in itertools.pairwise(starts)]
    return ops.reshape(value, (-1, *merged))


def _summed_to(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `values` summed over the axes along which a weight was broadcast.

    Args:
        values: Tensor of shape `(batch_size, ...)`.
        shape: The weight's shape, which NumPy's rules broadcast to the shape of one example.

    Returns:
        A tensor of shape `(batch_size, *shape)`.
    """
    added = len(values.shape) - 1 - len(shape)
    axes = [axis for axis in range(1, len(values.shape)) if axis <= added]
    axes += [1 + added + axis for axis, size in enumerate(shape) if size == 1]
    summed = ops.sum(values, axis=tuple(axes)) if axes else values
    return ops.reshape(summed, (-1, *shape))
