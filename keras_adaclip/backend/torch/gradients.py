"""Gradients and loops on PyTorch."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

Tensor = Any


def differentiate_at_taps(
    function: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
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
    gradients: Sequence[Tensor | None] = [None] * len(taps)
    if taps and loss.requires_grad:
        gradients = torch.autograd.grad(loss, taps, allow_unused=True)
    further = keras.tree.map_structure(_detach, further)
    return further, [
        _or_zeros(gradient, tap) for gradient, tap in zip(gradients, taps, strict=True)
    ]


def gradients_of(
    function: Callable[[], tuple[Tensor, Any]],
    by: Sequence[keras.Variable],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[Tensor]]:
    """Override: `torch.autograd.grad`."""
    values = [variable.value for variable in by]
    for value in values:
        # In a `StatelessScope` the value may be a result of other operations.
        if value.is_leaf:
            value.requires_grad_()
    with torch.enable_grad():
        loss, further = function()
    gradients: Sequence[Tensor | None] = [None] * len(values)
    if values and loss.requires_grad:
        gradients = torch.autograd.grad(loss, values, allow_unused=True)
    further = keras.tree.map_structure(_detach, further)
    return further, [
        _or_zeros(gradient, value) for gradient, value in zip(gradients, values, strict=True)
    ]


def gradients_at(
    function: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], values: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Override: `torch.func.grad`."""
    with torch.enable_grad():
        gradients, further = torch.func.grad(function, has_aux=True)(list(values))
    return list(gradients), further


def per_example_layer_gradients(
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    values: Sequence[Tensor],
    arguments: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """Override: `torch.func.vmap`, or one example at a time."""

    def inner_product(
        values: Sequence[Tensor], inputs: Sequence[Tensor], cotangent: Sequence[Tensor]
    ) -> Tensor:
        """Return the inner product of one example's outputs and cotangents."""
        outputs = function(values, [value.unsqueeze(0) for value in inputs])
        return sum(
            (output * weight.unsqueeze(0)).sum()
            for output, weight in zip(outputs, cotangent, strict=True)
        )

    gradient = torch.func.grad(inner_product)
    values = [value.detach() for value in values]
    with torch.enable_grad(), warnings.catch_warnings():
        # PyTorch warns of operations without a rule for batches, which it loops over.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            gradients = torch.func.vmap(gradient, in_dims=(None, 0, 0))(
                values, list(arguments), list(cotangents)
            )
        except RuntimeError:  # Not every operation has a `vmap`; Keras's convolutions do not.
            singles = [
                gradient(values, [value[row] for value in arguments], [g[row] for g in cotangents])
                for row in range(len(arguments[0]))
            ]
            gradients = [torch.stack(parts) for parts in zip(*singles, strict=True)]
    return list(gradients)


def convolution_kernel_gradients(
    inputs: Tensor,
    cotangents: Tensor,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    groups: int,
) -> Tensor | None:
    """Override: one grouped convolution, on a CPU and for kernels larger than 1.

    The examples of a batch become groups of channels of one image. The gradient of a grouped
    convolution keeps the groups apart, so its groups are the gradients of the examples (Rochette et
    al. 2019). In milliseconds of one core, with products of patches in parentheses: 27 (63) for
    each convolution with 16 filters in the speed benchmark's row `resnet`, whose step takes 480.
    """
    batch_size, channels, filters = inputs.shape[0], inputs.shape[-1], cotangents.shape[-1]
    is_a_product = all(elements == 1 for elements in kernel_size)
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
    # Only the shape of the kernels is read; expanded ones would be copied.
    kernels = images.new_empty((batch_size * filters, channels // groups, *kernel_size))
    _, gradients, _ = torch.ops.aten.convolution_backward(
        cotangents,
        images,
        kernels,
        None,
        tuple(strides),
        [before if is_even else 0 for before, _ in pairs],
        tuple(dilation_rate),
        False,
        [0] * len(kernel_size),
        batch_size * groups,
        (False, True, False),
    )
    return gradients.reshape(batch_size, filters, channels // groups, *kernel_size)


def map_examples(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Override: `torch.vmap`, or one example at a time."""
    try:
        return list(torch.vmap(function)(values))
    except RuntimeError:  # As in `map_units`.
        return _one_by_one(function, values)


def map_units(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Override: `torch.func.vmap`, or one unit at a time."""
    try:
        return list(torch.func.vmap(function, randomness="different")(values))
    except RuntimeError:  # Some losses branch on values (hinge), which `vmap` cannot.
        return _one_by_one(function, values)


def _one_by_one(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> list[Tensor]:
    """Apply a function to each row and stack the results."""
    rows = [function([value[row] for value in values]) for row in range(len(values[0]))]
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def loop_over_chunks(
    body: Callable[[int, list[Tensor]], list[Tensor]],
    carry: list[Tensor],
    num_chunks: Tensor | int,
    variables: Sequence[keras.Variable],
    constants: Sequence[keras.Variable] = (),
) -> list[Tensor]:
    """Override: a loop in Python."""
    for index in range(int(num_chunks)):
        carry = body(index, carry)
    return carry


def _detach(value: Any) -> Any:
    """Return a tensor without its graph, and anything else unchanged."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a gradient, or zeros if there is none."""
    return torch.zeros_like(like) if gradient is None else gradient.detach()
