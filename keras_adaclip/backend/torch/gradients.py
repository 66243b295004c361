"""Gradients and loops on PyTorch."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import torch

from keras_adaclip.backend import contract
from keras_adaclip.backend.contract import Function, ResultAndGradients, Tensor, Tensors, Variables


def differentiate_at_taps(function: Function, variables: Variables) -> ResultAndGradients:
    """Override: tensors that pass a tap require gradients."""
    taps: list[Tensor] = []

    def tap(value: Tensor) -> Tensor:
        """Return a tensor that requires gradients."""
        if not value.requires_grad:
            value = value.detach().requires_grad_()
        taps.append(value)
        return value

    with torch.enable_grad():
        loss, further = function(tap)
    return keras.tree.map_structure(_detach, further), _gradients(loss, taps)


def gradients_of(function: Function, by: Variables, variables: Variables) -> ResultAndGradients:
    """Override: `torch.autograd.grad`."""
    values = [variable.value for variable in by]
    for value in values:
        # In a `StatelessScope` the value may be a result of other operations.
        if value.is_leaf:
            value.requires_grad_()
    with torch.enable_grad():
        loss, further = function()
    return keras.tree.map_structure(_detach, further), _gradients(loss, values)


def gradients_at(function: Function, values: Tensors) -> tuple[list[Tensor], Any]:
    """Override: `torch.func.grad`."""
    with torch.enable_grad():
        gradients, further = torch.func.grad(function, has_aux=True)(list(values))
    return list(gradients), further


def per_example_layer_gradients(
    function: Function, values: Tensors, arguments: Tensors, cotangents: Tensors
) -> list[Tensor]:
    """Override: `torch.func.grad` of an inner product with the cotangents."""
    values, number = [value.detach() for value in values], len(arguments)

    def one_example(example: list[Tensor]) -> list[Tensor]:
        """Return the gradients of one example."""
        inputs, cotangent = (
            [value.unsqueeze(0) for value in part] for part in (example[:number], example[number:])
        )

        def inner_product(values: Tensors) -> Tensor:
            """Return the inner product of the example's outputs and cotangents."""
            pairs = zip(function(values, inputs), cotangent, strict=True)
            return sum((output * weight).sum() for output, weight in pairs)

        return torch.func.grad(inner_product)(values)

    with torch.enable_grad(), warnings.catch_warnings():
        # PyTorch warns of operations without a rule for batches, which it loops over.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return map_units(one_example, [*arguments, *cotangents])


def convolution_kernel_gradients(
    layer: Any, inputs: Tensor, cotangents: Tensor, pairs: Sequence[tuple[int, int]]
) -> Tensor | None:
    """Override: one grouped convolution, on a CPU and for kernels larger than 1.

    The examples of a batch become groups of channels of one image. The gradient of a grouped
    convolution keeps the groups apart, so its groups are the gradients of the examples (Rochette et
    al. 2019). In milliseconds of one core, with products of patches in parentheses: 27 (63) for
    each convolution with 16 filters in the speed benchmark's row `resnet`, whose step takes 480.
    """
    batch_size, filters = inputs.shape[0], cotangents.shape[-1]
    is_a_product = all(elements == 1 for elements in layer.kernel_size)
    # Many groups of few channels are slow on a GPU.
    if is_a_product or batch_size == 0 or inputs.device.type != "cpu":
        return None
    images, is_even = torch.movedim(inputs, -1, 1), all(first == last for first, last in pairs)
    if not is_even:  # A convolution pads both sides alike.
        images = torch.nn.functional.pad(images, [rows for pair in pairs[::-1] for rows in pair])
    images, cotangents = (
        value.to(torch.float32).reshape(1, -1, *value.shape[2:])
        for value in (images, torch.movedim(cotangents, -1, 1))
    )
    shape = (filters, inputs.shape[-1] // layer.groups, *layer.kernel_size)
    # Only the shape of the kernels is read; expanded ones would be copied.
    kernels = images.new_empty((batch_size * shape[0], *shape[1:]))
    _, gradients, _ = torch.ops.aten.convolution_backward(
        cotangents,
        images,
        kernels,
        None,
        tuple(layer.strides),
        [before if is_even else 0 for before, _ in pairs],
        tuple(layer.dilation_rate),
        False,
        [0] * len(pairs),
        batch_size * layer.groups,
        (False, True, False),
    )
    return gradients.reshape(batch_size, *shape)


def map_units(function: Function, values: list[Tensor], may_loop: bool = True) -> list[Tensor]:
    """Override: `torch.func.vmap`, or one unit at a time."""
    try:
        return list(torch.func.vmap(function, randomness="different")(values))
    except RuntimeError:  # Some functions branch on values, and not every operation has a `vmap`.
        if not may_loop:
            raise
        rows = [function([value[row] for value in values]) for row in range(len(values[0]))]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def map_examples(function: Function, values: list[Tensor]) -> list[Tensor]:
    """Override: as for other units."""
    return map_units(function, values)


def masked(kept: Tensor, values: Tensor) -> Tensor:
    """Override: on a CPU, copies nothing if all rows are kept, as in nearly every step."""
    if kept.device.type == "cpu" and bool(kept.all()):
        return values
    return contract.masked(kept, values)


def sum_of_rows(values: Tensor, places: Tensor, num_rows: int) -> Tensor:
    """Override: without the copy that Keras makes."""
    table = values.new_zeros((num_rows, *values.shape[1:]))
    return table.index_add_(0, places, values)


def loop_over_chunks(
    body: Function, carry: list[Tensor], num_chunks: Any, variables: Variables, constants: Variables
) -> list[Tensor]:
    """Override: a loop in Python."""
    for index in range(int(num_chunks)):
        carry = body(index, carry)
    return carry


def _detach(value: Any) -> Any:
    """Return a tensor without its graph, and anything else unchanged."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _gradients(loss: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a loss, zeros if unconnected."""
    if not by or not loss.requires_grad:
        return [torch.zeros_like(value) for value in by]
    return list(torch.autograd.grad(loss, by, materialize_grads=True))
