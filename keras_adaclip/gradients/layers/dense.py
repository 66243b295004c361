"""`Dense` and `EinsumDense`, which attention layers consist of, and `Embedding`.

The first two are matrix products with named axes. Each letter of the equation is one of: the batch;
a position (in inputs and outputs); an input (in inputs and kernel); an output (in kernel and
outputs); a group (in all three); or an axis of the inputs alone, which is summed first. The
gradient of the kernel W is a sum of outer products over the positions (Goodfellow 2015, "Efficient
per-example gradient computations").

With LoRA, `W + s A B` takes the place of W, and A and B have smaller gradients: with cotangents c
they are those of `x` and `s c B^T`, and of `s x A` and `c` (Hu et al. 2022, "LoRA: Low-rank
adaptation of large language models").
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Lookup, Materialized, PerExampleGradient
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
_DENSE = "...a,ab->...b"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register(keras.layers.EinsumDense)
class EinsumDenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed to its shape."""

    taps_activation = True
    covers_low_rank = True

    def covers(self, layer: Any) -> bool:
        """Return whether the first axis is the batch, and no letter occurs twice in one term."""
        ndim = getattr(layer.input_spec, "ndim", None) or 2
        equation = _Equation.of(getattr(layer, "equation", _DENSE), ndim)
        if layer.bias is not None and len(layer.bias.shape) >= len(equation.outputs):
            return False
        return equation.is_batched and (equation.ends_free or not layer.lora_enabled)

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of kernel and bias, or of the two factors of LoRA and the bias."""
        layer: Any = call.layer
        equation = _Equation.of(getattr(layer, "equation", _DENSE), len(call.inputs.shape))
        cotangents = ops.cast(call.cotangents[0], "float32")
        scale = layer.lora_alpha / layer.lora_rank if layer.lora_enabled else 1.0

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            """Return the gradient of one variable."""
            if variable is layer.bias:
                return Materialized(_summed_to(cotangents, variable.shape))
            if layer.lora_enabled and variable is layer.lora_kernel_a:
                second, factor = equation.of_last_axis(), layer.lora_kernel_b.value
                backward = f"{second.outputs},{second.kernel}->{second.inputs}"
                narrow = ops.einsum(backward, cotangents, ops.cast(factor, "float32"))
                return equation.kernel_gradient(call.inputs, scale * narrow, variable.shape)
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


@register(keras.layers.Embedding)
class EmbeddingRule(LayerRule):
    """A Gram matrix of equal ids for the norm, a segment sum for the weighted sum.

    An example touches only the rows that it looks up, so no dense gradient is made.
    """

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> Sequence[PerExampleGradient | None]:
        """Return the gradient of the table, for ids of shape `(batch_size, ...)`."""
        (table,) = variables
        batch_size = ops.shape(call.inputs)[0]
        ids = ops.reshape(call.inputs, (batch_size, -1))
        cotangents = ops.reshape(call.cotangents[0], (batch_size, -1, table.shape[1]))
        return [Lookup(ids, cotangents, table.shape)]


class ReversibleEmbeddingRule(EmbeddingRule):
    """Lookups as of `Embedding`; with `reverse=True`, outer products over the positions."""

    def tapped_call(
        self, layer: Any, call: Call, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Tensor]]:
        """Tap the outputs, and keep them where logits are capped."""
        outputs, _ = super().tapped_call(layer, call, tap, args, kwargs)
        return outputs, [outputs] if layer.logit_soft_cap is not None else []

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> Sequence[PerExampleGradient | None]:
        """Return the gradients of the table, and of a second kernel where weights are not tied."""
        layer: Any = call.layer
        is_reverse, *_ = *call.args[1:], call.kwargs.get("reverse", False)
        if not is_reverse:
            lookup = super().gradients(call, [layer.embeddings])[0]
            return [lookup if each is layer.embeddings else None for each in variables]
        cotangents = ops.cast(call.cotangents[0], "float32")
        if layer.logit_soft_cap is not None:
            capped = ops.cast(call.kept[0], "float32") / layer.logit_soft_cap
            cotangents = cotangents * (1.0 - ops.square(capped))
        sizes = layer.output_dim, layer.input_dim
        inputs, cotangents = (
            ops.reshape(value, (ops.shape(value)[0], -1, size))
            for value, size in zip((call.inputs, cotangents), sizes, strict=True)
        )
        if layer.tie_weights:
            product = OuterProduct(cotangents, inputs, layer.embeddings.shape)
            return [product if each is layer.embeddings else None for each in variables]
        product = OuterProduct(inputs, cotangents, sizes)
        return [None if each is layer.embeddings else product for each in variables]


if hasattr(keras.layers, "ReversibleEmbedding"):  # Not in the oldest releases of Keras.
    register(keras.layers.ReversibleEmbedding)(ReversibleEmbeddingRule)


@dataclass(frozen=True)
class _Equation:
    """The axes of inputs, kernel and outputs, one letter each."""

    inputs: str
    kernel: str
    outputs: str

    @staticmethod
    @functools.cache
    def of(text: str, ndim: int) -> "_Equation":
        """Return the equation of a layer without dots, for inputs with `ndim` axes."""
        left, outputs = text.split("->")
        inputs, kernel = left.split(",")
        num_dots = ndim - len(inputs.replace("...", ""))
        unused = "".join(letter for letter in _LETTERS if letter not in text)
        inputs, outputs = (text.replace("...", unused[:num_dots]) for text in (inputs, outputs))
        return _Equation(inputs, kernel, outputs)

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

    def kernel_gradient(self, inputs: Tensor, cotangents: Tensor, shape: Any) -> PerExampleGradient:
        """Return the gradient of the kernel."""
        groups, bound, free, positions = _kinds(self)
        blocks = [
            _arranged(inputs, self.inputs, groups, positions, bound),
            _arranged(cotangents, self.outputs, groups, positions, free),
        ]
        if self.kernel in (bound + free, free + bound):  # There are no groups.
            first, second = blocks if self.kernel == bound + free else blocks[::-1]
            return OuterProduct(first[:, 0], second[:, 0], shape)
        canonical = groups + bound + free
        sizes = [shape[self.kernel.index(letter)] for letter in canonical]
        order = [canonical.index(letter) for letter in self.kernel]
        return OuterProduct(blocks[0], blocks[1], shape, sizes, order)


@functools.cache
def _kinds(equation: _Equation) -> tuple[str, str, str, str]:
    """Return the letters of groups, inputs, outputs and positions."""
    inputs, kernel, outputs = equation.inputs, equation.kernel, equation.outputs
    groups = "".join(x for x in kernel if x in inputs and x in outputs)
    bound = "".join(x for x in kernel if x not in outputs)
    free = "".join(x for x in kernel if x not in inputs)
    return groups, bound, free, "".join(x for x in outputs[1:] if x not in kernel)


def _arranged(value: Tensor, letters: str, groups: str, positions: str, last: str) -> Tensor:
    """Rearrange axes named `letters`, batch first, to `(batch_size, groups, positions, last)`.

    Axes without a letter among these are summed.
    """
    wanted = letters[0] + groups + positions + last
    if wanted != letters:
        value = ops.einsum(f"{letters}->{wanted}", ops.cast(value, "float32"))
    sizes = dict(zip(wanted, ops.shape(value), strict=True))
    merged = [math.prod(sizes[x] for x in part) for part in (groups, positions, last)]
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
