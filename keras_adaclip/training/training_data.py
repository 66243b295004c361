"""What `fit` was given, how it is sampled, and what the accountant must know of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip._checks import check_batch_size
from keras_adaclip.accounting import Sampling, Unit
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import FixedShapeBatches, PoissonDataset
from keras_adaclip.training.arrays import (
    first_rows,
    number_of_rows,
    strings_as_tensors,
    weights_of_classes,
)
from keras_adaclip.training.host_shares import host_share
from keras_adaclip.training.streams import known_length, known_num_examples, peek

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
        poisson: the Poisson-sampled data set, where that is the sampling: of examples, or of
            clients.
        unit: whose contributions are clipped.
        noise_scale: what the optimizer's noise multiplier is multiplied by, before it is accounted
            and drawn.
    """

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    rows: Batch
    fit_arguments: dict[str, Any] = field(default_factory=dict)
    steps_per_release: int | None = None
    steps_per_epoch: int | None = None
    poisson: Any = None
    unit: Unit = Unit.EXAMPLE
    noise_scale: float = 1.0

    def epoch_ends_executions(self, model: keras.Model) -> bool:
        """Whether the last execution of an epoch stops at the epoch's end.

        With `steps_per_execution` it does where the data end there too; where Keras cuts a longer
        stream into epochs it runs on. Over several replicas it may, and is taken to.

        Args:
            model: what is trained.
        """
        if self.steps_per_epoch is None or backend.num_replicas(model) > 1:
            return False
        return self.poisson is not None or self.fit_arguments.get("steps_per_epoch") is None

    def with_sizes(self, sizes: Sequence[int], model: keras.Model) -> dict[str, Any]:
        """The arguments for Keras's `fit`, Poisson draws padded to `sizes` where there are any.

        Draws come as the backend prepares them best, on TensorFlow as a `tf.data.Dataset`.
        """
        if self.poisson is None:
            return self.fit_arguments
        batches = FixedShapeBatches(
            self.poisson, self.steps_per_epoch or 1, sizes, backend.num_batch_shards()
        )
        return {
            **self.fit_arguments,
            **backend.fit_arguments(batches, self.poisson.first_rows, model),
        }


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
    num_examples = number_of_rows(x, y, sample_weight)
    batch_size = 32 if batch_size is None else batch_size
    is_shared = backend.num_processes() > 1 and sampling == "poisson"
    if not is_shared:
        batch_size = check_batch_size(batch_size, num_examples)
    if sampling == "shuffle":
        return TrainingData(
            Sampling.SHUFFLE,
            batch_size,
            num_examples,
            first_rows(x, y, sample_weight),
            {
                "x": strings_as_tensors(x),
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
    dataset = (
        host_share(x, y, sample_weight, batch_size, seed)
        if is_shared
        else PoissonDataset(x, y, sample_weight, expected_batch_size=batch_size, seed=seed)
    )
    return from_poisson(dataset, steps_per_epoch)


def from_poisson(dataset: PoissonDataset, steps_per_epoch: int | None) -> TrainingData:
    """Training data from a Poisson-sampled data set.

    Raises:
        ValueError: where `steps_per_epoch` is not a positive integer or None.
    """
    is_integer = isinstance(steps_per_epoch, Integral) and not isinstance(steps_per_epoch, bool)
    if steps_per_epoch is not None and not (is_integer and steps_per_epoch > 0):
        raise ValueError(
            "Argument `steps_per_epoch` must be a positive integer, or None for as many steps as "
            f"batches make up the data. Received: steps_per_epoch={steps_per_epoch!r}"
        )
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
    first, data = peek(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(first)
    batch_size = number_of_rows(x, y, sample_weight)
    num_batches = known_length(data)
    if num_examples is None:
        num_examples = known_num_examples(data, num_batches, batch_size)
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
            # Keras shuffles no other kind of data set, and warns where it is asked to.
            "shuffle": shuffle and isinstance(data, keras.utils.PyDataset),
            "steps_per_epoch": steps_per_epoch,
        },
        steps_per_release=num_batches if once_per_pass else None,
        steps_per_epoch=steps_per_epoch or num_batches,
    )
