"""What `fit` was given, how it is sampled, and what the accountant must know of it."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import Sampling
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import (
    FixedShapeBatches,
    PoissonDataset,
    checked_batch_size,
    common_length,
)

_SAMPLING_NAMES = ("poisson", "shuffle")


@dataclass
class TrainingData:
    """Training data, ready for Keras's `fit`.

    Args:
        sampling: how the units are sampled.
        expected_batch_size: expected number of units in a step, the divisor of the noised sum.
        num_examples: number of units; 0 where it does not matter.
        rows: a few examples, to build and examine the model with.
        fit_arguments: what the data contributes to the arguments of Keras's `fit`.
        steps_per_release: steps in one pass over the data, where passes are what is released.
        steps_per_epoch: steps in an epoch, None where Keras finds out.
        poisson: the Poisson-sampled data set, where that is the sampling.
    """

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    rows: Batch
    fit_arguments: dict[str, Any] = field(default_factory=dict)
    steps_per_release: int | None = None
    steps_per_epoch: int | None = None
    poisson: PoissonDataset | None = None

    @property
    def epoch_ends_executions(self) -> bool:
        """Whether the last execution of an epoch stops at the epoch's end.

        With `steps_per_execution` it does where the data end there too; where Keras cuts a longer
        stream into epochs it runs on.
        """
        return self.steps_per_epoch is not None and (
            self.poisson is not None or self.fit_arguments.get("steps_per_epoch") is None
        )

    def with_layout(self, chunk_size: int | None) -> dict[str, Any]:
        """The arguments for Keras's `fit`, batches padded to one shape where `chunk_size` is set."""
        if self.poisson is None:
            return self.fit_arguments
        batches = FixedShapeBatches(self.poisson, self.steps_per_epoch or 1, chunk_size)
        return {**self.fit_arguments, "x": batches}


def is_array_data(x: Any) -> bool:
    """Whether `x` is an array or a structure of arrays, and not a data set."""
    if isinstance(x, (dict, list, tuple)):
        leaves = keras.tree.flatten(x)
        return bool(leaves) and all(_is_array(leaf) for leaf in leaves)
    return _is_array(x)


def from_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    class_weight: dict[int, float] | None,
    *,
    batch_size: int | None,
    sampling: str,
    steps_per_epoch: int | None,
    shuffle: Any,
    seed: int | None,
) -> TrainingData:
    """Training data from arrays; the arguments are those of `PrivateModel.fit`.

    Raises:
        ValueError: where an argument is out of range, or numbers of rows differ.
    """
    if sampling not in _SAMPLING_NAMES:
        raise ValueError(
            f"Argument `sampling` must be one of {_SAMPLING_NAMES}. Received: sampling={sampling!r}"
        )
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    num_examples = common_length({name: part for name, part in parts.items() if part is not None})
    batch_size = checked_batch_size(32 if batch_size is None else batch_size, num_examples)
    if sampling == "shuffle":
        return TrainingData(
            Sampling.SHUFFLE,
            batch_size,
            num_examples,
            first_rows(x, y, sample_weight),
            {
                "x": x,
                "y": y,
                "sample_weight": sample_weight,
                "class_weight": class_weight,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "steps_per_epoch": steps_per_epoch,
            },
            steps_per_epoch=steps_per_epoch or math.ceil(num_examples / batch_size),
        )
    if class_weight is not None:
        sample_weight = weights_of_classes(y, class_weight, sample_weight)
    dataset = PoissonDataset(x, y, sample_weight, expected_batch_size=batch_size, seed=seed)
    return from_poisson(dataset, steps_per_epoch)


def from_poisson(dataset: PoissonDataset, steps_per_epoch: int | None) -> TrainingData:
    """Training data from a Poisson-sampled data set."""
    rows = dataset.first_rows
    return TrainingData(
        Sampling.POISSON,
        dataset.expected_batch_size,
        dataset.num_examples,
        Batch(rows["x"], rows.get("y"), rows.get("sample_weight")),
        {"shuffle": False},
        steps_per_epoch=steps_per_epoch or dataset.num_batches,
        poisson=dataset,
    )


def from_foreign(
    data: Any,
    class_weight: dict[int, float] | None,
    *,
    num_examples: int | None,
    once_per_pass: bool,
    steps_per_epoch: int | None,
    shuffle: Any,
) -> TrainingData:
    """Training data from a `tf.data.Dataset`, `PyDataset`, `DataLoader` or generator.

    Args:
        data: the data set.
        class_weight: as for Keras's `fit`.
        num_examples: number of examples, for the report and the default delta.
        once_per_pass: the user's word that a pass holds each example at most once.
        steps_per_epoch: as for Keras's `fit`.
        shuffle: as for Keras's `fit`.

    Raises:
        ValueError: where the number of examples cannot be known, or no batch comes out.
    """
    first, data = _peek(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(first)
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    batch_size = common_length({name: part for name, part in parts.items() if part is not None})
    num_batches = _known_length(data)
    if num_examples is None:
        num_examples = _known_num_examples(data, num_batches, batch_size)
    if num_examples is None:
        raise ValueError(
            "The number of training examples cannot be known from an object of type "
            f"{type(data).__name__}, and the privacy report needs it. Pass "
            "`fit(..., num_examples=...)`, the number of distinct examples (it is treated as "
            "public)."
        )
    if once_per_pass and steps_per_epoch is not None and num_batches is None:
        raise ValueError(
            "With `once_per_pass=True` and `steps_per_epoch`, the length of the data set must be "
            "known, or a pass has no end. Leave `steps_per_epoch` out, or give a data set with a "
            f"length. Received: steps_per_epoch={steps_per_epoch}"
        )
    return TrainingData(
        Sampling.PASS if once_per_pass else Sampling.STREAM,
        batch_size,
        int(num_examples),
        first_rows(x, y, sample_weight),
        {
            "x": data,
            "class_weight": class_weight,
            "shuffle": shuffle,
            "steps_per_epoch": steps_per_epoch,
        },
        steps_per_release=num_batches if once_per_pass else None,
        steps_per_epoch=steps_per_epoch or num_batches,
    )


def weights_of_classes(
    y: Any, class_weight: dict[int, float], sample_weight: Any
) -> np.ndarray:
    """Sample weights of shape `(num_examples,)` from class weights, as Keras makes them.

    Args:
        y: class numbers of shape `(num_examples,)` or `(num_examples, 1)`, or one-hot rows.
        class_weight: weight by class number; classes that are left out weigh 1.
        sample_weight: must be None.

    Raises:
        ValueError: where both kinds of weights are given, or `y` is not one array.
    """
    if sample_weight is not None:
        raise ValueError("Arguments `class_weight` and `sample_weight` exclude each other.")
    if y is None or isinstance(y, (dict, list, tuple)):
        raise ValueError(
            "Argument `class_weight` needs one array of targets; use `sample_weight` for models "
            "with several outputs."
        )
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] != 1 else labels[..., 0]
    labels = np.round(labels).astype(np.int64)
    weights = np.ones(labels.shape, np.float32)
    for number, weight in class_weight.items():
        weights[labels == int(number)] = weight
    return weights


def split_off_validation(
    x: Any, y: Any, sample_weight: Any, fraction: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    """Splits off the last rows for validation, as Keras does.

    Args:
        x: inputs; arrays of shape `(num_examples, ...)`.
        y: targets or None.
        sample_weight: weights or None.
        fraction: share of the rows for validation, between 0 and 1.

    Returns:
        The training part `(x, y, sample_weight)` and the validation part.
    """
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    length = common_length({name: part for name, part in parts.items() if part is not None})
    start = math.floor(length * (1.0 - fraction))
    if not 0 < start < length:
        raise ValueError(
            "Argument `validation_split` must leave at least one example on each side of "
            f"{length}. Received: validation_split={fraction}"
        )

    def cut(part: Any, rows: slice) -> Any:
        return None if part is None else keras.tree.map_structure(lambda v: v[rows], part)

    head = tuple(cut(part, slice(0, start)) for part in (x, y, sample_weight))
    tail = tuple(cut(part, slice(start, None)) for part in (x, y, sample_weight))
    return (head[0], head[1], head[2]), tail


def first_rows(x: Any, y: Any, sample_weight: Any) -> Batch:
    """The first three rows of each part, as NumPy arrays."""

    def take(part: Any) -> Any:
        return None if part is None else keras.tree.map_structure(_head, part)

    return Batch(take(x), take(y), take(sample_weight))


def _head(value: Any) -> np.ndarray:
    head = value[:3]
    return np.asarray(head.detach().cpu() if hasattr(head, "detach") else head)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not _is_dataset(value)


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "element_spec")


def _peek(data: Any) -> tuple[Any, Any]:
    """The first batch, and the data with that batch still in it."""
    try:
        if isinstance(data, keras.utils.PyDataset):
            return data[0], data
        if hasattr(data, "__next__"):
            first = next(data)
            return first, itertools.chain([first], data)
        return next(iter(data)), data
    except StopIteration:
        raise ValueError("The training data hold no batch.") from None
    except TypeError:
        raise TypeError(
            "Training data must be arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a "
            f"`torch.utils.data.DataLoader` or a generator. Received: {type(data).__name__}"
        ) from None


def _known_length(data: Any) -> int | None:
    """Number of batches in a pass, None where it is unknown or infinite."""
    if isinstance(data, keras.utils.PyDataset):
        return None if data.num_batches is None else int(data.num_batches)
    if hasattr(data, "cardinality"):
        length = int(data.cardinality())
        return length if length >= 0 else None
    try:
        return len(data)
    except TypeError:
        return None


def _known_num_examples(data: Any, num_batches: int | None, batch_size: int) -> int | None:
    """Number of examples, where the data set tells."""
    if hasattr(data, "num_examples"):
        return int(data.num_examples)
    inner = getattr(data, "dataset", None)
    if inner is not None and hasattr(inner, "__len__"):
        return len(inner)
    return None if num_batches is None else num_batches * batch_size
