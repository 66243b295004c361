"""The data given to `fit`, how it is sampled, and the facts of it that the ledger needs."""

import copy
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip._checks import check_batch_size, check_choice, check_integer
from keras_adaclip.accounting import (
    LedgerRow,
    Sampling,
    require_truncation,
    smallest_max_batch_size,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, mapped
from keras_adaclip.optimizers import RunSettings
from keras_adaclip.sampling import (
    FixedShapeBatches,
    PoissonDataset,
    SourceBatches,
    SparseRows,
    as_array,
    common_length,
    from_frames,
    most_copies,
    num_rows_not_finite,
    rows_of_units,
    written_out,
)
from keras_adaclip.training.processes import as_share

# Of a row, from which on a warning says so.
_MANY_COPIES = 10


@dataclass(frozen=True, kw_only=True)
class TrainingData(RunSettings):
    """Training data, ready for Keras's `fit`, on top of the facts of the run.

    Args:
        rows: A few examples, to build the model.
        known: Examples whose columns may be read, for the ranges of made-up rows.
        fit_arguments: Arguments of Keras's `fit` that come from the data.
        poisson: The Poisson-sampled data set of examples, or the rounds of a federated model;
            None for other data.
        class_weights: Weights of the classes of arrays.
    """

    rows: Batch
    known: Batch | None = None
    fit_arguments: dict[str, Any] = field(default_factory=dict)
    poisson: Any = None
    class_weights: "ClassWeights | None" = None

    @property
    def settings(self) -> RunSettings:
        """The facts of the run alone, without the data."""
        names = [each.name for each in dataclasses.fields(RunSettings)]
        return RunSettings(**{name: getattr(self, name) for name in names})

    @property
    def epoch_is_pass(self) -> bool:
        """Whether each epoch begins a new pass over the data, and passes are what is counted."""
        is_cut = self.fit_arguments.get("steps_per_epoch") is not None
        return self.sampling.is_counted_in_passes and not is_cut

    def num_not_finite(self, handled: Sequence[bool]) -> int:
        """Return the number of examples with NaN or infinity, 0 if not all of them are known.

        Args:
            handled: By target, whether the loss has a use of its own for such numbers.
        """
        known = self.known
        if known is None or common_length({"x": known.x}) < self.num_examples:
            return 0
        pairs = itertools.zip_longest(keras.tree.flatten(known.y), handled)
        targets = [target for target, is_handled in pairs if not is_handled]
        return num_rows_not_finite((known.x, targets, known.sample_weight))

    def warn_of_rows(self, handled: Sequence[bool]) -> None:
        """Warn of gaps in many rows, classes without a weight, and rows that stand many times.

        Args:
            handled: As for `num_not_finite`.
        """
        known = self.known
        if known is None or common_length({"x": known.x}) != self.num_examples:
            return
        if (num_wrong := self.num_not_finite(handled)) > 0.25 * self.num_examples:
            warnings.warn(
                f"{num_wrong:,} of {self.num_examples:,} examples hold NaN or infinity and "
                "contribute nothing, so that the budget is spent on the others alone. (This count "
                "is not private.) Stop here, and fill the gaps or leave these rows out.",
                stacklevel=4,
            )
        others = [] if self.class_weights is None else self.class_weights.left_out(known.y)
        if others:
            warnings.warn(
                "Argument `class_weight` gives no weight to classes that occur in the targets, and "
                f"which weigh 1: {', '.join(f'{each:g}' for each in others[:5])}. (That they occur "
                "is not private.) Give every class a weight.",
                stacklevel=4,
            )
        most, distinct, is_of_class = most_copies(known.x, known.y)
        if (most >= _MANY_COPIES or is_of_class) and not self.rows_per_unit:
            warnings.warn(
                f"A row of the data stands {most:,} times: {distinct:,} of {self.num_examples:,} "
                "rows differ. (These counts are not private.) Epsilon protects one row, and "
                "copies are one person's: leave them out, and give `class_weight` or "
                "`sample_weight` to what shall count more.",
                stacklevel=4,
            )

    def epoch_ends_executions(self, model: keras.Model) -> bool:
        """Return whether the last execution of an epoch stops at the epoch's end.

        With `steps_per_execution` it does if the data end there too. If Keras cuts a longer stream
        into epochs, it runs on. Over several replicas it may, and is assumed to.
        """
        if self.steps_per_epoch is None or backend.num_replicas(model) > 1:
            return False
        return self.poisson is not None or self.fit_arguments.get("steps_per_epoch") is None

    def with_max_batch_size(self, rows: Iterable[LedgerRow], delta: float) -> "TrainingData":
        """Return the data with the largest batch chosen, where the data set leaves it open.

        Args:
            rows: What the run is planned to add to the ledger.
            delta: The delta of its epsilon.
        """
        if self.poisson.max_batch_size == "auto":
            self.poisson.choose_max_batch_size(smallest_max_batch_size(rows, delta))
        sampling, most = _sampling_of(self.poisson)
        return dataclasses.replace(self, sampling=sampling, max_batch_size=most)

    def with_sizes(self, sizes: Sequence[int], model: keras.Model) -> dict[str, Any]:
        """Return the arguments for Keras's `fit`, with Poisson draws padded to one of `sizes`."""
        if self.poisson is None:
            return self.fit_arguments
        weighted = functools.partial(_with_class_weights, class_weights=self.class_weights)
        batches = FixedShapeBatches(
            self.poisson, self.steps_per_epoch or 1, sizes, backend.num_batch_shards(), weighted
        )
        arguments = backend.fit_arguments(batches, weighted(self.poisson.first_rows), model)
        return {**self.fit_arguments, **arguments}


@dataclass(frozen=True, kw_only=True)
class DrawsOfFit:
    """The arguments of `fit` that say how units are drawn from its data.

    Args:
        batch_size: As for `PrivateModel.fit`, like the arguments below.
        class_weight: Weights of classes, or None.
        model: The model.
        num_epochs: The argument `epochs`.
        num_examples: Number of examples, if the data set has no length.
        once_per_pass: The user's word that a pass holds each example at most once.
        sampling: `"poisson"` or `"shuffle"`.
        shuffle: Whether Keras shuffles.
        steps_per_epoch: Number of steps in an epoch, or None.
        validation_split: Share of arrays that is held out.
        unit_ids: Whose the rows of arrays are, or None.
        max_rows_per_unit: The most rows of one person, or None.
    """

    batch_size: int | None = None
    class_weight: dict[int, float] | None = None
    model: Any = None
    num_epochs: int = 1
    num_examples: int | None = None
    once_per_pass: bool = False
    sampling: str = "poisson"
    shuffle: Any = True
    steps_per_epoch: int | None = None
    validation_split: float = 0.0
    unit_ids: Any = None
    max_rows_per_unit: int | None = None

    def from_arrays(self, x: Any, y: Any, sample_weight: Any, optimizer: Any) -> TrainingData:
        """Return training data from arrays.

        Raises:
            ValueError: If an argument is out of range, or numbers of rows differ.
        """
        check_choice("sampling", self.sampling, ("poisson", "shuffle"))
        num_examples, rows = rows_of(x, y, sample_weight)
        weights = ClassWeights.of_fit(self.model, self.class_weight, rows.x, y)
        ids, most = self.unit_ids, self.max_rows_per_unit
        if ids is not None or most is not None:
            words = "`unit_ids`: a person could be on both sides. Give `validation_data`"
            _refuse_given({"validation_split": self.validation_split or None}, words)
            stays = rows_of_units(ids, most, num_examples, optimizer.sampling_seed)
            num_examples = int(stays.sum())
        size, steps = self.batch_size, self.steps_per_epoch
        is_shared = backend.num_processes() > 1 and self.sampling == "poisson"
        if size is None:
            size = optimizer.default_batch_size(num_examples, self.num_epochs, steps)
            size = size if is_shared else min(size, num_examples)
        if not is_shared:
            size = check_batch_size(size, num_examples)
        if self.sampling == "poisson":
            own = PoissonDataset(
                x,
                y,
                sample_weight,
                expected_batch_size=1 if is_shared else size,
                seed=optimizer.sampling_seed,
                unit_ids=ids,
                max_rows_per_unit=most,
            )
            return self._from_poisson(as_share(own, size), weights)
        if most is not None:
            x, y, sample_weight = mapped(lambda part: as_array(part)[stays], (x, y, sample_weight))
        if weights is not None:
            sample_weight = weights.of(y, sample_weight)
            rows = dataclasses.replace(rows, sample_weight=sample_weight[:3])
        # Keras would hand sparse batches on to the step.
        parts = written_out({"x": x, "y": y, "sample_weight": sample_weight})
        parts["x"] = for_keras(parts["x"])
        options = {"batch_size": size, "shuffle": self.shuffle, "steps_per_epoch": steps}
        return TrainingData(
            sampling=Sampling.SHUFFLE,
            rows_per_unit=most or 0,
            expected_batch_size=size,
            num_examples=num_examples,
            steps_per_epoch=steps or math.ceil(num_examples / size),
            rows=rows,
            known=Batch(x, y, sample_weight),
            fit_arguments={**parts, **options},
            class_weights=weights,
        )

    def from_data_set(self, data: Any, **of_arrays: Any) -> TrainingData:
        """Return training data from a data set, generator or source.

        A `PoissonDataset` is accounted with amplification by sampling, and so is a source, of which
        one is made; any other data set without.

        Args:
            data: A `PoissonDataset`, `tf.data.Dataset`, `PyDataset`, `DataLoader`, generator, or a
                source that is read by number.
            **of_arrays: Targets and weights, which go with arrays only.

        Raises:
            ValueError: If an argument does not go with the data, the number of examples is unknown,
                or there is no batch.
        """
        kind = type(data).__name__
        if hasattr(data, "client_ids"):
            raise TypeError(
                "A `PrivateModel` trains on single examples, and these are clients. To protect "
                "clients, train a `keras_adaclip.FederatedModel` (`keras_adaclip.federate(model)`);"
                " to protect single examples, give `x, y = clients.all_examples()`. "
                f"Received: x of type {kind}"
            )
        if is_source(data):
            optimizer, length = self.model.optimizer, len(data)
            usual = optimizer.default_batch_size(length, self.num_epochs, self.steps_per_epoch)
            size, seed = self.batch_size or min(usual, length), optimizer.sampling_seed
            data = PoissonDataset.from_source(data, expected_batch_size=size, seed=seed)
            return dataclasses.replace(self, batch_size=None).from_data_set(data, **of_arrays)
        split = self.validation_split or None
        of_arrays |= {"batch_size": self.batch_size, "validation_split": split}
        _refuse_given(of_arrays, f"a data set of type {kind}, which has its own")
        units = {"unit_ids": self.unit_ids, "max_rows_per_unit": self.max_rows_per_unit}
        _refuse_given(
            units, f"a data set of type {kind}. Give them with arrays or `PoissonDataset`"
        )
        num_examples, steps = self.num_examples, self.steps_per_epoch
        if isinstance(data, PoissonDataset):
            data = as_share(data)
            chosen = {
                "num_examples": None if num_examples == data.num_examples else num_examples,
                "once_per_pass": self.once_per_pass,
                "sampling": None if self.sampling == "poisson" else self.sampling,
            }
            _refuse_given(
                chosen, "a `PoissonDataset`, which draws its own batches from its own rows"
            )
            first = data.first_rows
            weights = ClassWeights.of_fit(self.model, self.class_weight, first["x"], first.get("y"))
            return self._from_poisson(data, weights)
        first, data = peek(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(first)
        _refuse_single_example((x, y, sample_weight), kind)
        batch_size, rows = rows_of(x, y, sample_weight)
        weights = ClassWeights.of_fit(self.model, self.class_weight, rows.x, rows.y)
        if weights is not None and weights.of(rows.y).ndim > 1:
            raise ValueError(
                "Argument `class_weight` needs one class for each example of a data set. Let its "
                "batches hold sample weights, or give `fit` arrays."
            )
        num_batches = known_length(data)
        if num_examples is None:
            num_examples = known_num_examples(data, num_batches, batch_size)
        if num_examples is None:
            raise ValueError(
                "The number of training examples cannot be known from an object of type "
                f"{type(data).__name__}, and the privacy report needs it. Pass "
                "`fit(..., num_examples=...)`, the number of distinct examples (it is treated as "
                "public), and `steps_per_epoch=...` if the batches have no end."
            )
        # Between epochs data sets change their order, and Keras reads ahead. In an iterator that
        # goes on for several epochs, an example may come again at any step.
        most = keras.config.max_steps_per_epoch()
        if self.once_per_pass and (most is not None or steps not in (None, num_batches)):
            raise ValueError(
                "With `once_per_pass=True` an epoch must be a whole pass: data may change their "
                "order between epochs, and examples would come again before the pass ends. Leave "
                "`steps_per_epoch` (and Keras's `max_steps_per_epoch`) out, or leave "
                "`once_per_pass` out and have every step accounted as a full release. Received: "
                f"steps_per_epoch={steps or most}, passes of {num_batches} batches"
            )
        steps = None if self.once_per_pass else steps
        num_examples = int(num_examples)
        _refuse_repetition(data, num_batches, batch_size, num_examples, self.once_per_pass)
        most_rows = num_examples if self.once_per_pass else math.inf
        # Keras shuffles no other kind of data set, and warns if asked to.
        shuffle = self.shuffle and isinstance(data, keras.utils.PyDataset)
        options = {"shuffle": shuffle, "steps_per_epoch": steps, "class_weight": self.class_weight}
        return TrainingData(
            sampling=Sampling.PASS if self.once_per_pass else Sampling.STREAM,
            expected_batch_size=batch_size,
            num_examples=num_examples,
            steps_per_epoch=steps or num_batches,
            rows=rows,
            known=Batch(x, y),
            fit_arguments={"x": _with_copied_batches(data, most_rows), **options},
        )

    def _from_poisson(
        self, dataset: PoissonDataset, weights: "ClassWeights | None"
    ) -> TrainingData:
        """Return training data from a Poisson-sampled data set, with weights of classes."""
        steps, known = self.steps_per_epoch, dataset.known_rows
        if steps is not None:
            steps = check_integer("steps_per_epoch", steps, minimum=1)
        rows = _with_class_weights(dataset.first_rows, weights)
        sampling, most = _sampling_of(dataset)
        return TrainingData(
            sampling=sampling,
            max_batch_size=most,
            rows_per_unit=dataset.rows_per_unit,
            expected_batch_size=dataset.expected_batch_size,
            num_examples=dataset.num_examples,
            steps_per_epoch=steps or dataset.num_batches,
            rows=Batch(rows["x"], rows.get("y"), rows.get("sample_weight")),
            known=Batch(known["x"], known.get("y"), known.get("sample_weight")),
            fit_arguments={"shuffle": False},
            poisson=dataset,
            class_weights=weights,
        )


def _refuse_repetition(
    data: Any, num_batches: int | None, batch_size: int, num_examples: int, once_per_pass: bool
) -> None:
    """Raise if the data show that a batch, or a pass, holds an example twice.

    Args:
        data: A data set. The sampler of a `DataLoader` is read for a pass.
        num_batches: Batches in a pass, None if unknown.
        batch_size: Examples in the first batch.
        num_examples: Number of distinct examples.
        once_per_pass: The user's word that a pass holds each example at most once.
    """
    batches = getattr(data, "batch_sampler", None)
    sampler = getattr(batches, "sampler", getattr(data, "sampler", None))
    drawn = () if batches is None else batches  # Those of a stream have no length.
    drawn = itertools.islice(drawn, num_batches or num_examples // batch_size + 2)
    # Examples that are read in order have no numbers.
    parts = [[number for number in batch if number is not None] for batch in drawn]
    repeats = getattr(sampler, "replacement", False) and (once_per_pass or batch_size > 1)
    if once_per_pass:
        parts = [list(itertools.chain(*parts))]
        repeats |= ((num_batches or 1) - 1) * batch_size >= num_examples or _has_no_end(data)
    if repeats or any(len(set(part)) < len(part) for part in parts):
        whole = "pass (`once_per_pass=True`)" if once_per_pass else "batch"
        raise ValueError(
            f"A {whole} must hold each example at most once, and these data repeat some. Draw "
            "without replacement, and no more often than there are examples, or give `fit` arrays, "
            f"which it samples itself. Received: x of type {type(data).__name__}, {num_batches} "
            f"batches of {batch_size}, num_examples={num_examples}"
        )


def _has_no_end(data: Any) -> bool:
    """Return whether a data set says that its passes have no end."""
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches is None
    return hasattr(data, "cardinality") and int(data.cardinality()) == -1


def _within_a_pass(batches: Iterable[Any], most_rows: float) -> Iterator[Any]:
    """Yield the batches of a pass, and raise at the first that holds an example too many."""
    num_rows = 0
    for batch in batches:
        num_rows += common_length({"batch": batch})
        if num_rows > most_rows:
            raise ValueError(
                "A pass (`once_per_pass=True`) must hold each example at most once, and this one "
                "goes on beyond the last. Let it end, correct `num_examples`, or leave "
                "`once_per_pass` out and have every step accounted as a full release. Received: "
                f"a batch that ends with row {num_rows}, num_examples={most_rows}"
            )
        yield batch


def _sampling_of(dataset: PoissonDataset) -> tuple[Sampling, int]:
    """Return how the ledger counts the draws of a data set, and the largest batch, 0 if none."""
    if dataset.max_batch_size is not None:
        require_truncation()
    most = dataset.truncated_to
    return (Sampling.POISSON, 0) if most is None else (Sampling.TRUNCATED_POISSON, most)


def _with_class_weights(
    batch: dict[str, Any], class_weights: "ClassWeights | None"
) -> dict[str, Any]:
    """Return a batch with the weights of its examples' classes, if there are any."""
    if class_weights is None:
        return batch
    weights = class_weights.of(batch["y"], batch.get("sample_weight"))
    return {**batch, "sample_weight": weights}


def _refuse_given(arguments: dict[str, Any], data: str) -> None:
    """Raise if an argument was given that the data decide, and that would be ignored."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(
                f"Argument `{name}` cannot be combined with {data}. "
                f"Received: {name} of type {type(value).__name__}"
            )


def _refuse_single_example(first: Any, kind: str) -> None:
    """Raise if the first element of a data set is not a batch.

    Args:
        first: Inputs, targets and weights, or None.
        kind: The type of the data set.
    """
    leaves = [leaf for leaf in keras.tree.flatten(first) if leaf is not None]
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
    if () in shapes or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(
            "The data set must hold batches, whose arrays all have as many rows, and its first "
            "element is none. If it holds single examples, call `.batch(n)` on a `tf.data.Dataset`,"
            " or give a `DataLoader` a `batch_size`; each step is then accounted as a full release."
            " To draw them by Poisson sampling, which costs far less, give `fit` the result of "
            "`keras_adaclip.sampling.write_source(examples, path)`. Received: x of type "
            f"{kind}, whose first element has arrays of shapes {', '.join(map(str, shapes))}"
        )


def is_source(data: Any) -> bool:
    """Return whether an object holds single examples that are read by number.

    What can also be iterated over, or has named columns, may hold something else.
    """
    kind = type(data)
    if isinstance(data, keras.utils.PyDataset) or is_array_data(data):
        return False
    is_unclear = hasattr(kind, "__iter__") or hasattr(data, "column_names")
    return hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not is_unclear


def is_array_data(x: Any) -> bool:
    """Return whether `x` is an array or a structure of arrays, not a data set."""
    leaves = keras.tree.flatten(x)
    leaves = [leaf for leaf in leaves if leaf is not None]
    return bool(leaves) and all(
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not hasattr(leaf, "element_spec")
        for leaf in leaves
    )


def rows_of(x: Any, y: Any, sample_weight: Any) -> tuple[int, Batch]:
    """Return the number of rows, and the first three of them as NumPy arrays, strings as objects.

    Raises:
        TypeError: If one of the parts is not a dense array with a first axis.
        ValueError: If their numbers of rows differ or are zero.
    """
    given = {"x": x, "y": y, "sample_weight": sample_weight}
    given = {name: part for name, part in given.items() if part is not None}
    first = {
        name: mapped(functools.partial(_first_rows, name), part) for name, part in given.items()
    }
    return common_length(given), Batch(**first)


def _first_rows(name: str, value: Any) -> np.ndarray:
    """Return up to three rows of an array, which sparse and ragged ones do not have."""
    try:
        head, _ = np.array(as_array(value[:3])), len(value)
    # Every framework has its own error for this.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"Argument `{name}` must be a dense array or frame of numbers (on TensorFlow, or of "
            "strings) whose rows are the examples, or a dict or list of such arrays. Convert it "
            "first, such as with `np.asarray`, `.toarray()`, by encoding or by padding. "
            f"Received: an object of type {type(value).__name__} ({error})"
        ) from error
    return head


@dataclass(frozen=True)
class ClassWeights:
    """Weights of the classes of targets, for each loss that a model's outputs have.

    Args:
        weights: The weight of each class number; other classes weigh 1.
        outputs: The shape of the predictions.
    """

    weights: dict[int, float]
    outputs: tuple[int | None, ...]

    @classmethod
    def of_fit(
        cls, model: keras.Model, weights: dict[int, float] | None, x: Any, y: Any
    ) -> "ClassWeights | None":
        """Return the weights of classes that `fit` was given, None without.

        Args:
            model: A model, built or not.
            weights: The argument `class_weight`.
            x: A few inputs.
            y: The targets.

        Raises:
            ValueError: If `y` is not one array with one class for each loss.
        """
        if not weights:
            return None
        if not isinstance(weights, Mapping):
            raise TypeError(
                "Argument `class_weight` must be a dict with a weight for each class, such as "
                f"{{0: 1.0, 1: 10.0}}. Received: class_weight={weights!r}"
            )
        if y is None or isinstance(y, (dict, list, tuple)):
            raise ValueError(
                "Argument `class_weight` needs one array of targets; use `sample_weight` for "
                "models with several outputs."
            )
        (output,) = keras.tree.flatten(keras_private.outputs_for(model, x))
        found, labels = cls(weights, tuple(output.shape)), np.asarray(y)
        is_mean = labels.ndim > 1 and labels.shape[-1] > 1 and found.outputs[-1] == 1
        sums = labels.sum(axis=-1) if found._is_one_hot(labels) else 1.0
        if is_mean or not np.allclose(np.nan_to_num(sums, nan=1.0), 1.0, atol=1e-3):
            raise ValueError(
                "Argument `class_weight` needs one class for each loss, and these targets have "
                "several classes in a row, of which the loss is a mean. Use `sample_weight`. "
                f"Received: y of shape {labels.shape} for outputs of shape {found.outputs}"
            )
        return found

    def _is_one_hot(self, labels: np.ndarray) -> bool:
        """Return whether targets have classes along their last axis."""
        return labels.ndim == len(self.outputs) > 1 and labels.shape[-1] > 1

    def _classes(self, y: Any) -> np.ndarray:
        """Return the class of each target, not yet rounded."""
        labels = np.asarray(y)
        if self._is_one_hot(labels):
            return labels.argmax(-1)
        return labels[..., 0] if labels.ndim > 1 and labels.shape[-1] == 1 else labels

    def left_out(self, y: Any) -> list[float]:
        """Return the classes of targets that have no weight."""
        classes = self._classes(y)
        return sorted(set(np.unique(np.round(classes[np.isfinite(classes)]))) - set(self.weights))

    def of(self, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Return sample weights, of the shape of the targets without an axis of classes.

        Args:
            y: Targets.
            sample_weight: Must be None.

        Raises:
            ValueError: If both kinds of weights are given.
        """
        if sample_weight is not None:
            raise ValueError("Give either `class_weight` or `sample_weight`, not both.")
        labels = self._classes(y)
        weights = np.ones(labels.shape, np.float32)
        for number, weight in self.weights.items():
            weights[np.round(labels) == int(number)] = weight
        return weights


def split_off_validation(
    x: Any, y: Any, sample_weight: Any, fraction: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return a training part and a validation part, which holds the last rows, as in Keras.

    Args:
        x: Inputs, arrays of shape `(num_examples, ...)`.
        y: Targets or None.
        sample_weight: Weights or None.
        fraction: Share of the rows for validation, between 0 and 1.

    Returns:
        Two tuples `(x, y, sample_weight)`.
    """
    length, _ = rows_of(x, y, sample_weight)
    start = math.floor(length * (1.0 - fraction))
    if not 0 < start < length:
        raise ValueError(
            "Argument `validation_split` must leave at least one example on each side of "
            f"{length}. Received: validation_split={fraction}"
        )

    def cut(rows: slice) -> tuple[Any, ...]:
        """Return some rows of each part."""
        return mapped(lambda value: value[rows], (x, y, sample_weight))

    return cut(slice(0, start)), cut(slice(start, None))


def for_keras(parts: Any, batch_size: int | None = None) -> Any:
    """Return the parts as Keras takes them: frames and lists as arrays, strings as tensors.

    Sparse matrices are those of SciPy again, and a source is batches of `batch_size`, in order.
    """
    if is_source(parts):
        return SourceBatches(parts, batch_size or 32)

    def convert(value: Any) -> Any:
        """Return an array of strings as a tensor, anything else unchanged."""
        if isinstance(value, SparseRows):
            return value.matrix
        is_text = getattr(getattr(value, "dtype", None), "kind", "") in ("O", "S", "T", "U")
        return keras.ops.convert_to_tensor(as_array(value)) if is_text else value

    return keras.tree.map_structure(convert, from_frames(parts))


def peek(data: Any) -> tuple[Any, Any]:
    """Return the first batch of a data set or generator, and the data with that batch in it.

    Raises:
        TypeError: If `data` is neither a data set nor a generator.
        ValueError: If there is no batch.
    """
    if isinstance(data, keras.utils.PyDataset):
        data.on_epoch_begin()  # As Keras does, since it may prepare the batches.
        return data[0], data
    # What has `__getitem__` alone holds single examples, and so does what has columns.
    has_iterator = hasattr(type(data), "__iter__") and not hasattr(data, "column_names")
    if isinstance(data, (list, tuple, dict, str)) or not has_iterator:
        raise TypeError(
            "Training data must be arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a "
            "`torch.utils.data.DataLoader` or a generator of batches. Give single examples that "
            "are read by number, such as a folder of images, as a `keras_adaclip.sampling."
            "PoissonDataset.from_source(source, expected_batch_size=...)`. "
            f"Received: x of type {type(data).__name__}"
        )
    first = next(iter(data), None)
    if first is None:
        raise ValueError("The training data hold no batch.")
    if hasattr(data, "__next__"):
        data = (copy.deepcopy(batch) for batch in itertools.chain([first], data))
    return first, data


class _CopiedBatches(keras.utils.PyDataset):
    """A `PyDataset` with copies of the batches of another, in module scope for processes."""

    def __init__(self, dataset: keras.utils.PyDataset) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset = dataset
        self.on_epoch_begin, self.on_epoch_end = dataset.on_epoch_begin, dataset.on_epoch_end

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self._dataset[index])

    @property
    def num_batches(self) -> int | None:
        """The number of batches in a pass, None if it has no end."""
        return known_length(self._dataset)


def _with_copied_batches(data: Any, most_rows: float) -> Any:
    """Return a data set whose batches are copied as soon as they are made.

    Keras keeps batches while it asks for others, for which the user's code may fill the same
    arrays. Generators come with copies from `peek`.

    Args:
        data: A data set or generator.
        most_rows: The largest number of rows in a pass of a generator or `DataLoader`.
    """
    if isinstance(data, keras.utils.PyDataset):
        return _CopiedBatches(data)
    if hasattr(data, "collate_fn"):
        kind = type(data)

        def batches(loader: Any) -> Any:
            """Yield copies of the batches."""
            return _within_a_pass(map(copy.deepcopy, kind.__iter__(loader)), most_rows)

        data = copy.copy(data)
        data.__class__ = type(kind.__name__, (kind,), {"__iter__": batches})
    return _within_a_pass(data, most_rows) if hasattr(data, "__next__") else data


def known_length(data: Any) -> int | None:
    """Return the number of batches in a pass, None if it is unknown or infinite."""
    if isinstance(data, keras.utils.PyDataset):
        return None if data.num_batches is None else int(data.num_batches)
    if hasattr(data, "cardinality"):
        length = int(data.cardinality())
        return length if length >= 0 else None
    try:
        return len(data)
    except TypeError:
        return None


def known_num_examples(data: Any, num_batches: int | None, batch_size: int) -> int | None:
    """Return the number of examples, None if the data set has no length."""
    if hasattr(data, "num_examples"):
        return int(data.num_examples)
    inner = getattr(data, "dataset", None)
    if inner is not None and hasattr(inner, "__len__"):
        return len(inner)
    return None if num_batches is None else num_batches * batch_size
