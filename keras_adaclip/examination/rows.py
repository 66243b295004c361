"""Made-up rows, and values that variables may come to have, for an examination."""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip import backend, gradients
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import SparseRows, as_array

# States of the variables that are tried: the present one, and two that `moved_value` makes. At two
# more, every variable that may be a counter is far from zero.
NUM_STATES, NUM_FAR_STATES = 3, 2
# More than the number of steps of any run, and a large number of half precision.
_FAR, _FAR_HALF = 1e9, 6e4
# Of a made-up input, whose square float32 can hold, and of one that is whole.
_LARGEST, _LARGEST_ID = 1e15, 2.0**62
# Numbers of the data whose range is read, and rows that are looked at for whole numbers.
_MOST_READ, _NUM_LOOKED_AT = 1 << 28, 1000
# Two rows are compared in each trial of a proof.
_NUM_ROWS_OF_PROOF = 12
_NUM_WORDS = 100


def value_at(
    state: int, variable: keras.Variable, is_trained: bool, keeps_sign: bool, generator: Generator
) -> np.ndarray:
    """Return another value that a variable may come to have.

    Args:
        state: 1 moves it a little, 2 reverses every sign too; at the two far states it is a counter
            that has counted up or down for very many steps.
        variable: The variable.
        is_trained: Whether the optimizer moves it.
        keeps_sign: Whether floats keep their sign.
        generator: Draws the noise.
    """
    value = backend.array_of(variable)
    is_far, kind = state >= NUM_STATES, value.dtype.kind
    if kind == "b":
        return np.full_like(value, state == NUM_STATES) if is_far else value ^ (state == 1)
    if is_far:
        far = _FAR if state == NUM_STATES else -_FAR
        if kind in "iu" or value.dtype.itemsize == 2:
            most = float(np.iinfo(value.dtype).max) if kind in "iu" else _FAR_HALF
            far = min(max(far, 0.0 if kind == "u" else -most / 2), most / 2)
        return np.full_like(value, far)
    if kind in "iu":  # It may count steps, or be a table of positions.
        is_counter = value.size == 1 and not is_trained
        return np.asarray(value + 10.0**state * is_counter).astype(value.dtype)
    factor = -1.0 if state == 2 else 1.0
    moved = gradients.moved_value(value, factor, 0.1, keeps_sign, generator)
    return moved.astype(value.dtype, copy=False)


def known_words(model: keras.Model) -> list[str]:
    """Return strings that a model tells apart: words that its layers look up, and texts of them.

    A word that no layer knows would give every row the same number.
    """
    words = ["", "a"]
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.TextVectorization)):
            words += [str(word) for word in layer.get_vocabulary()[:_NUM_WORDS]]
    return [*words, " ".join(words[2:]), " ".join(words[:1:-1])]


@dataclass(frozen=True)
class Law:
    """How the entries of an input or a target are drawn.

    Args:
        lowest: The lowest value, of a shape that broadcasts to that of one example.
        highest: The highest value, as `lowest`.
        is_whole: Whether entries are whole numbers, as `lowest`.
        values: The values to choose from in place of all this.
    """

    lowest: Any = 0.0
    highest: Any = 1.0
    is_whole: Any = True
    values: Sequence[Any] | None = None

    def drawn(
        self, shape: tuple[int, ...], dtype: np.dtype, state: int, generator: Generator
    ) -> np.ndarray:
        """Return random entries; the state decides from which part of the range they are."""
        if self.values is not None:
            return generator.choice(np.array(self.values, dtype), shape)
        share = generator.random(shape)
        share = np.round(share) if state % NUM_STATES == 2 else share
        limit = _LARGEST if dtype.kind == "f" else _LARGEST_ID
        lowest, highest = (np.clip(each, -limit, limit) for each in (self.lowest, self.highest))
        whole = np.minimum(np.floor(lowest + share * (highest - lowest + 1.0)), highest)
        return np.where(self.is_whole, whole, lowest + share * (highest - lowest)).astype(dtype)


class SampleRows:
    """Made-up rows, which no example of the data decides; their weights are 1.

    There are several sources of rows. Inputs follow what is declared, in each of them: ranges of
    the user's, the table or the vocabulary of the layer that an input feeds. Other numbers are
    small, of both signs in the first source and positive in the second. Targets are numbers between
    0 and 1, whole ones where they are integers: most losses take these. In the last source,
    whatever is not declared stays within the range of each column of the data.

    Args:
        model: A built model.
        rows: At least one example, for structure, shapes and dtypes.
        known: Inputs and targets whose columns may be read; None for none.
        ranges: The argument `input_ranges` of `fit`.

    Attributes:
        structure: Inputs and, by name, targets and weights, whose leaves are the rows.
        num_inputs: The number of inputs.

    Raises:
        ValueError: If `ranges` do not fit the inputs.
    """

    def __init__(
        self, model: keras.Model, rows: Batch, known: Batch | None = None, ranges: Any = None
    ) -> None:
        parts = {"y": rows.y, "sample_weight": rows.sample_weight}
        self.structure = rows.x, {name: part for name, part in parts.items() if part is not None}
        self._model, self._known = model, known
        self._inputs, self._targets, weights = map(_leaves, (rows.x, rows.y, rows.sample_weight))
        self._weights = [np.ones_like(value[:1]) for value in weights]
        self.num_inputs = len(self._inputs)
        layers = keras_private.flatten_layers(model)
        masking = [layer for layer in layers if isinstance(layer, keras.layers.Masking)]
        self._paddings = [*(float(layer.mask_value) for layer in masking), 0.0]
        self._declared = _laws_of_user(ranges, rows.x, self._inputs)

    @functools.cached_property
    def undeclared(self) -> list[int]:
        """The numbers of the inputs of which nothing is declared."""
        layers = _laws_of_inputs(self._model, self._inputs)
        pairs = zip(self._declared, layers, strict=True)
        self._declared = [one or other for one, other in pairs]
        return [number for number, law in enumerate(self._declared) if law is None]

    @property
    def reads_data(self) -> bool:
        """Whether the last source is that of the data."""
        return self._known is not None and bool(self.undeclared or self._targets)

    @functools.cached_property
    def sources(self) -> list[list[Law]]:
        """The laws of all inputs and targets, for each source."""
        has_floats = any(self._inputs[number].dtype.kind == "f" for number in self.undeclared)
        words, known = known_words(self._model), self._known
        targets = [
            Law(is_whole=value.dtype.kind != "f", values=[""] if value.dtype.kind == "O" else None)
            for value in self._targets
        ]
        pairs = list(zip(self._declared, self._inputs, strict=True))
        sources = [
            [law or _small(value, low, words) for law, value in pairs] + targets
            for low in ([-2.0, 0.0] if has_floats else [0.0])
        ]
        if known is not None and self.reads_data:
            columns = zip(self._declared, _leaves(known.x), strict=True)
            of_data = [law or _of_columns(value, words) for law, value in columns]
            parts = _leaves(known.y) if self._targets else []
            sources.append(of_data + [_of_columns(value, words) for value in parts])
        return sources

    @property
    def names(self) -> list[str]:
        """The names of the inputs, for messages."""
        paths = keras.tree.flatten_with_path(self.structure[0])
        named = [".".join(map(str, path)) for path, value in paths if value is not None]
        of_model = [tensor.name for tensor in getattr(self._model, "inputs", None) or ()]
        is_named = len(of_model) == len(named) and "keras_tensor" not in "".join(of_model)
        return of_model if is_named else [name or "x" for name in named]

    def of_inputs(self) -> "SampleRows":
        """Return the same rows of the one input alone, as an augmentation takes them."""
        alone = copy.copy(self)
        alone._targets, alone._weights = [], []
        alone.structure = (keras.tree.flatten(self.structure[0])[0], {})
        alone.sources = [laws[:1] for laws in self.sources]
        return alone

    def drawn(
        self, source: int, size: int, state: int, generator: Generator, is_padded: bool = False
    ) -> list[np.ndarray]:
        """Return rows: inputs, weights and targets, as `structure` flattens.

        Args:
            source: The number of the source.
            size: The number of rows.
            state: Decides from which parts of the ranges they are.
            generator: Draws the rows.
            is_padded: Whether sequences end early, behind which there is padding.
        """
        pairs = zip(self.sources[source], [*self._inputs, *self._targets], strict=True)
        rows = [
            law.drawn((size, *value.shape[1:]), value.dtype, state, generator)
            for law, value in pairs
        ]
        inputs, targets = rows[: self.num_inputs], rows[self.num_inputs :]
        if is_padded:
            padding = self._paddings[state // 2 % len(self._paddings)]
            inputs = [cut_short(each, padding, generator) for each in inputs]
        return [*inputs, *(np.repeat(value, size, axis=0) for value in self._weights), *targets]

    def batch(self, source: int = 0, size: int = _NUM_ROWS_OF_PROOF) -> Batch:
        """Return a batch from one source, as tensors, the same in each call."""
        rows = self.drawn(source, size, 0, np.random.default_rng(size))
        x, parts = packed(self.structure, rows)
        return gradients.finite_rows(Batch(x, **parts))

    def first_shown(self, judges: Iterable[Callable[[Batch], Any]], size: int) -> Any:
        """Return the first result for a batch of any source that is not None, or None.

        The ranges of the data come first, for which every loss is defined.
        """
        failure: Exception | None = None
        for judge in judges:
            for source in reversed(range(len(self.sources))):
                told, error = backend.attempt(judge, self.batch(source, size))
                if told is not None:
                    return told
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    def batches(self) -> tuple[list[Batch], Batch | None]:
        """Return batches of the sources that do not read the data, and one of that which does.

        The latter is None if all inputs are declared.
        """
        batches = [self.batch(number) for number in range(len(self.sources))]
        of_data = batches.pop() if self.reads_data else None
        return batches, of_data if self.undeclared else None


def _small(value: np.ndarray, lowest: float, words: list[str]) -> Law:
    """Return the law of an input of which nothing is declared."""
    if value.dtype.kind == "O":
        return Law(values=words)
    # 0 and 1 are valid in any table. So are small numbers, cut to whole ones.
    return Law(lowest, 2.0, is_whole=False) if value.dtype.kind == "f" else Law()


def _of_columns(value: np.ndarray, words: list[str]) -> Law:
    """Return the law of a part of the data, from the range of each of its columns."""
    if value.dtype.kind in "Ob":
        return _small(value, 0.0, words)
    value = value[: max(_MOST_READ // max(math.prod(value.shape[1:]), 1), 1)]
    if value.dtype.kind != "f":
        return Law(value.min(axis=0).astype("float64"), value.max(axis=0).astype("float64"))
    lowest, highest = np.fmin.reduce(value), np.fmax.reduce(value)
    if not (np.isfinite(lowest).all() and np.isfinite(highest).all()):
        value = np.where(np.isfinite(value), value, np.nan)
        lowest, highest = (np.nan_to_num(each.reduce(value)) for each in (np.fmin, np.fmax))
    few = np.nan_to_num(value[:: math.ceil(len(value) / _NUM_LOOKED_AT)])
    is_whole = (few == np.floor(few)).all(axis=0)
    return Law(lowest.astype("float64"), highest.astype("float64"), is_whole)


def _leaves(part: Any) -> list[np.ndarray]:
    """Return the arrays of a part of a batch, none for None."""
    values = [value for value in keras.tree.flatten(part) if value is not None]
    return [each.extremes() if isinstance(each, SparseRows) else as_array(each) for each in values]


def packed(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return a structure with other leaves, None unchanged."""
    given, places = iter(leaves), keras.tree.flatten(structure)
    filled = [None if place is None else next(given) for place in places]
    return keras.tree.pack_sequence_as(structure, filled)


def _laws_of_inputs(model: keras.Model, inputs: list[np.ndarray]) -> list[Law | None]:
    """Return the law of each input that the layer behind it declares, None for others."""
    tensors = getattr(model, "inputs", None) or ()
    if len(tensors) != len(inputs):
        return [None] * len(inputs)
    laws: list[Law | None] = []
    for tensor in tensors:
        layers = keras_private.layers_fed_by(model, tensor)
        laws.append(next(filter(None, map(_law_of_layer, layers)), None))
    return laws


def _law_of_layer(layer: keras.Layer) -> Law | None:
    """Return the law of the numbers that a layer declares to take, None if it declares none."""
    kinds = keras.layers
    if isinstance(layer, kinds.Embedding):
        return Law(0, layer.input_dim - 1)
    if isinstance(layer, kinds.CategoryEncoding) and layer.num_tokens is not None:
        return Law(0, layer.num_tokens - 1)
    if isinstance(layer, (kinds.IntegerLookup, kinds.StringLookup)):
        return Law(values=layer.get_vocabulary(include_special_tokens=False)[:_NUM_WORDS])
    return None


def _laws_of_user(ranges: Any, x: Any, inputs: list[np.ndarray]) -> list[Law | None]:
    """Return the laws of the argument `input_ranges` of `fit`, None where it says nothing.

    Raises:
        ValueError: If it does not fit the inputs.
    """
    if ranges is None:
        return [None] * len(inputs)
    pairs: list[Any] = []
    laws: list[Law | None] = []
    try:
        keras.tree.map_structure_up_to(x, lambda *pair: pairs.append(pair), x, ranges)
        given = [pair for value, pair in pairs if value is not None]
        for pair, value in zip(given, inputs, strict=True):
            if pair is None:
                laws.append(None)
                continue
            lowest, highest = (
                np.broadcast_to(np.asarray(each, "float64"), value.shape[1:]) for each in pair
            )
            if not (np.isfinite([lowest, highest]).all() and (lowest <= highest).all()):
                raise ValueError("bounds must be finite, the lowest one first")
            if value.dtype.kind == "O":
                raise ValueError("strings have no range")
            laws.append(Law(lowest, highest, value.dtype.kind != "f"))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Argument `input_ranges` must have the structure of `x`, with a pair `(lowest, "
            "highest)` of finite numbers or arrays of the shape of one example in the place of "
            f"each array of numbers, or None. Received: input_ranges={ranges!r} ({error})"
        ) from error
    return laws


def cut_short(rows: np.ndarray, padding: float, generator: Generator) -> np.ndarray:
    """Return sequences of random lengths, for layers that mask what follows them.

    Args:
        rows: Shape `(rows, positions, ...)`; rows with fewer axes are returned unchanged.
        padding: The value behind the end of a sequence of floats; integers have 0 there.
        generator: Draws the lengths.
    """
    least = 3 if rows.dtype.kind == "f" else 2
    if rows.dtype.kind not in "fiu" or rows.ndim < least or rows.shape[1] < 2:
        return rows
    rows = rows.copy()
    longest = generator.integers(1, rows.shape[1])
    for row in rows:
        row[generator.integers(1, longest + 1) :] = padding if rows.dtype.kind == "f" else 0
    return rows
