"""A function of tensors, recorded once as PyTorch's own operations and repeated from the record.

Keras runs a few milliseconds of Python for a training step, which for small batches is most of the
time. The record calls the operations alone.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from keras_adaclip.backend.torch_graphs import shorten

Tensor = Any
_MOST_RECORDS = 64
# How a tensor's numbers leave PyTorch: what is made of them would be the first client's for all.
_WAYS_OUT = {
    "__array__",
    "__bool__",
    "__complex__",
    "__dlpack__",
    "__float__",
    "__index__",
    "__int__",
    "allclose",
    "data_ptr",
    "equal",
    "is_nonzero",
    "item",
    "numpy",
    "storage",
    "tolist",
    "untyped_storage",
}


class Recording:
    """Calls a function, and from the second call with the same shapes on what it did at the first.

    The function must be what a compiled one must: its results follow from the tensors that it is
    given, and it draws no random numbers from a state that it reads itself. One that asks for the
    value of a tensor, to decide by it or to compute with it elsewhere, is never recorded but called
    each time; so is one that counts by a shape, such as that of the rows which a mask leaves.
    """

    def __init__(self) -> None:
        self._records: dict[Any, Callable[..., Sequence[Tensor]] | None] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._records.clear()

    def call(
        self, function: Callable[[list[Tensor]], list[Tensor]], values: Sequence[Tensor]
    ) -> list[Tensor]:
        """What `function(values)` returns.

        Args:
            function: takes and returns a list of tensors. It is the same until `clear`.
            values: tensors.
        """
        values = [value.detach() for value in values]
        key = tuple((value.shape, value.dtype, value.device) for value in values)
        if key not in self._records:
            if len(self._records) == _MOST_RECORDS:
                self.clear()
            devices = range(torch.cuda.device_count())
            with torch.random.fork_rng(devices=devices):
                self._records[key] = _recorded(function, values)
            return function(values)
        record = self._records[key]
        if record is None:
            return function(values)
        with torch.no_grad():
            return list(record(*values))


def _recorded(
    function: Callable[[list[Tensor]], list[Tensor]], values: list[Tensor]
) -> Callable[..., Sequence[Tensor]] | None:
    """The record, None where the function cannot be recorded.

    Numbers that left PyTorch on the way, through NumPy or as the length of a tensor, would be
    fixed in the record. Nor is it used where it does not give what the function gives for other
    values too.
    """
    watched, shapes = _WaysOut(), _ShapesOfValues()

    def watched_function(*values: Tensor) -> list[Tensor]:
        with watched:
            return function(list(values))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with shapes:
                module = make_fx(watched_function)(*values)
            if watched.are_taken or shapes.are_made:
                return None
            others = [_changed(value) for value in values]
            proofs = [(each, function(each)) for each in (values, others)]
            with torch.no_grad():
                shorten(module, values)
                for record in (_without_python(module, values), module.forward):
                    if record is not None and _agrees(record, proofs):
                        return record
        except Exception:  # What a function may not do while it is recorded has many names.
            return None
    return None


class _WaysOut(TorchFunctionMode):
    """Notices whether the numbers of a tensor leave PyTorch."""

    are_taken = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func` as it would have been called."""
        if getattr(func, "__name__", None) in _WAYS_OUT:
            self.are_taken = True
        return func(*args, **(kwargs or {}))


class _ShapesOfValues(TorchDispatchMode):
    """Notices whether the shape of a tensor follows from the values of another one.

    Python reads a shape without asking PyTorch, and the count it makes of it stays in the record:
    the first client's for all. Other values of the trial may well have the same count.
    """

    are_made = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func` as it would have been called."""
        if torch.Tag.dynamic_output_shape in func.tags and _counts_values(func, args):
            self.are_made = True
        return func(*args, **(kwargs or {}))


def _counts_values(func: Any, args: Any) -> bool:
    """Of indexing, whether it is by a mask; the shape follows from those of whole numbers."""
    if func is not torch.ops.aten.index.Tensor:
        return True
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _changed(value: Tensor) -> Tensor:
    """Another value of the same kind and range."""
    if value.dtype == torch.bool:
        return torch.logical_not(value)
    if value.dtype.is_floating_point:
        # Among numbers that are not finite, any two results agree.
        return 0.75 * torch.nan_to_num(value, nan=0.5, posinf=1.0, neginf=-1.0) + 0.01
    return torch.flip(value, tuple(range(value.ndim)))


def _without_python(
    module: torch.fx.GraphModule, values: list[Tensor]
) -> Callable[..., Sequence[Tensor]] | None:
    """The same for PyTorch's own interpreter, None for operations that it does not take."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.jit.trace(module, tuple(values), check_trace=False)
        except (AttributeError, RuntimeError):  # the first from a PyTorch that no longer has it
            return None


def _agrees(
    record: Callable[..., Sequence[Tensor]], proofs: Sequence[tuple[list[Tensor], list[Tensor]]]
) -> bool:
    # Its first runs are for learning what it runs on.
    return all(
        _is_same(*pair)
        for _ in range(3)
        for values, expected in proofs
        for pair in zip(record(*values), expected, strict=True)
    )


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return bool(torch.equal(one, other))
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
