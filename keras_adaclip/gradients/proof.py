"""Compares a plan with the plain gradients of single rows, before it is used.

This finds what no table of layers can know: weights that are used outside the layer that owns them,
layers that merge axes into the batch.

The comparison is made with the weights moved a little. If a layer begins with zeros, as last layers
often do, all gradients behind it would be zero, and any plan would agree. Weights that are not
trained are moved too: a factor that is zero now may be nonzero later. A gradient that is zero or
not finite proves nothing, and neither do rows with which plain gradients fail.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients.batch import Batch, finite_rows, mapped
from keras_adaclip.gradients.forward import single_gradient
from keras_adaclip.gradients.layers import GeneralRule, is_differentiable
from keras_adaclip.gradients.layerwise import GradientPlan, looped_plan, per_example_gradients
from keras_adaclip.gradients.plan import failure_of, refused_ranges, suggested_plan
from keras_adaclip.sampling import filled

Tensor = Any

# For each trial: the factor of the trained weights, how far weights are moved as a share of their
# size, and whether they keep their sign. Large weights may saturate all outputs, some must be
# positive, and some may not be moved at all. A ReLU next to zero may be on in a batch and off
# alone, so one trial may fail by accident; an error of the rules makes all fail.
_TRIALS = (
    *((1.0, 0.1, False), (-1.0, 0.1, False), (1.0, 0.1, True)),
    *((0.01, 0.1, False), (1.0, 1.0, True), (1.0, 0.0, True)),
)
# Longer noise repeats this many draws, which is faster. The number is prime, so that rows differ.
_MOST_DRAWN = 65_537
# Factors and finiteness of three rows, of which the last one must add nothing.
_FACTORS, _FINITE = np.array([[0.5], [2.0], [0.0]], "float32"), np.array([True, True, False])
# Factors of the losses by the plan: a row that counts as another one has the wrong factor, even if
# the two are equal.
_SHARES = np.array([1.0, 1.75, 0.625], "float32")
# A gradient of more numbers is compared by this many random sums over its first axes.
_MOST_COMPARED, _NUM_SUMS = 1 << 20, 8
_NOTHING = "gradients are zero or not finite"


def make_plan(
    model: keras.Model,
    rows: Batch | Sequence[Batch],
    method: str = "auto",
    of_data: Batch | None = None,
    suggested: GradientPlan | None = None,
) -> GradientPlan:
    """Return the fastest plan that is exact for `model`.

    Args:
        model: A built model with a compiled loss.
        rows: Two or three examples, as NumPy arrays or tensors, for shapes and the comparison; or
            several batches of them, of which the first that shows something decides. For training
            that is private they must be made up, without a look at the data.
        method: `"layerwise"` requires a layer-wise plan. `"auto"` allows one example after
            another if no layer-wise plan is exact.
        of_data: Examples within the ranges of private data, which must prove a layer-wise plan
            too, or alone where the others show nothing. They never lead to another one.
        suggested: What `suggested_plan` returned, if that is known.

    Raises:
        ValueError: If `method` is `"layerwise"` and no layer-wise plan is exact, or if `of_data`
            would have to decide.
    """
    batches = [rows] if isinstance(rows, Batch) else list(rows)
    plan = suggested or suggested_plan(model, batches)
    proof = _Proof(model, plan)
    if plan.is_layerwise:
        found = (proof.objection(each) for each in batches)
        reason = next((each for each in found if each is not None), None)
        if of_data is not None and not reason:
            of_ranges = proof.objection(of_data, may_choose=False, is_last=reason is None)
            # Where the made-up rows prove a plan, ranges that show nothing are no objection. Where
            # no row at all has a gradient, the loss is to blame.
            if of_ranges or (of_ranges is None and reason is None and not proof.is_constant):
                raise refused_ranges(model, of_ranges or _NOTHING)
            reason = reason if of_ranges is None else ""
        reason = f"on made-up rows {_NOTHING}" if reason is None else reason
        plan = looped_plan(reason) if reason else plan
    if method != "auto" and not plan.is_layerwise:
        raise ValueError(
            f"Model {model.name!r} cannot be differentiated with gradient_method={method!r}: "
            f'{plan.looped_reason}. Use gradient_method="auto", which is exact for every model.'
        )
    further = [] if of_data is None else [of_data]
    return dataclasses.replace(plan, unreached=proof.unreached([*batches, *further]))


def moved_value(
    value: np.ndarray, factor: float, distance: float, keeps_sign: bool, generator: Any
) -> np.ndarray:
    """Return another value that a variable of floats may come to have, float32.

    Args:
        value: The present value.
        factor: Factor of the result.
        distance: How far numbers are moved, as a share of their size. Zeros become positive, of a
            typical size.
        keeps_sign: Whether each number keeps its sign; zeros count as positive.
        generator: Draws the noise.
    """
    # Weights can be many, so each of these operations counts.
    numbers = value.astype("float32", copy=False).ravel()
    size = math.sqrt(float(np.dot(numbers, numbers)) / max(value.size, 1))
    size = size or 1.0 / math.sqrt(max(math.prod(value.shape[:-1]), 1))
    drawn = generator.standard_normal(min(value.size, _MOST_DRAWN), "float32")
    noise = np.resize(np.float32(distance * size) * drawn, value.size)
    is_zero = numbers == 0.0
    if is_zero.any():
        noise[is_zero] = np.abs(noise[is_zero]) / np.float32(distance)
    noise += numbers
    noise *= np.float32(factor)
    if keeps_sign:
        noise = np.copysign(noise, np.where(numbers < 0.0, np.float32(-1.0), np.float32(1.0)))
    return noise.reshape(value.shape)


class _Proof:
    """Compares a layer-wise plan with plain gradients, with functions that are compiled once.

    Args:
        model: A built model with a compiled loss.
        plan: The plan.
        added: Layers whose outputs are added to the loss. So weights are compared that the loss
            does not use, or not on made-up rows.
    """

    def __init__(
        self, model: keras.Model, plan: GradientPlan, added: Sequence[keras.Layer] = ()
    ) -> None:
        self._model, self._plan, self._added = model, plan, added
        self._held = [*model.variables, *model.metrics_variables]
        self._plain = backend.Evaluator(self._plain_gradient, model, is_brief=True)
        self._planned = backend.Evaluator(self._norms_and_sums, model, is_brief=True)
        layers = keras_private.flatten_layers(model)
        self._is_half = any(each.compute_dtype in ("float16", "bfloat16") for each in layers)
        # The numbers of the trained variables of which some gradient was not zero, None before a
        # gradient was finite.
        self._reached: set[int] | None = None

    def objection(self, batch: Batch, may_choose: bool = True, is_last: bool = False) -> str | None:
        """Return why the plan may not be exact: "" if it is, None if the rows show nothing.

        Args:
            batch: A few examples.
            may_choose: Whether rows that show too little are an objection too.
            is_last: Whether an error with which no row has a plain gradient is raised.
        """
        plan, variables = self._plan, self._model.trainable_variables
        # Of these, the plan does not take derivatives as autodiff does.
        of_rules = {
            id(variable)
            for layer, rule in plan.rules.items()
            if not isinstance(rule, GeneralRule)
            for variable in plan.variables[layer]
        }
        unseen = {n for n, each in enumerate(variables) if id(each) in of_rules & set(plan.forms)}
        found: list[bool] = []
        failure: Exception | None = None
        for trial, kind in enumerate(_TRIALS):
            parts, values = _varied(batch, trial), self._moved(trial, *kind)
            pair, error = backend.attempt(self._pair, parts, values)
            if error is not None:  # Some weights may not be moved so.
                failure = failure or error
                continue
            if not pair:
                continue
            seen = _nonzero(pair)
            planned, error = backend.attempt(self._planned, [], (values, parts, _FACTORS, _FINITE))
            if error is not None:
                return failure_of(error)
            if not self._added:
                pair = [_scaled(*each) for each in zip(pair, _SHARES[:2].tolist(), strict=True)]
            found.append(self._agrees(planned, *pair))
            unseen -= seen if found[-1] else set()
            if found.count(False) > 1 or (2 * sum(found) > len(found) and not unseen):
                break
        if found and 2 * sum(found) <= len(found):
            return "layer-wise gradients differ from plain ones on a few rows"
        if found and not unseen:
            return ""
        if found and may_choose and not self._added:
            owners = [
                layer
                for layer, own in plan.variables.items()
                if any(variables[number] is each for number in unseen for each in own)
            ]
            objection = _Proof(self._model, plan, owners).objection(batch)
            if objection is not None:
                return objection
        if found and may_choose:
            paths = ", ".join(repr(variables[number].path) for number in sorted(unseen))
            return f"gradients are zero, which proves nothing, of {paths}"
        if failure is not None and is_last and not found:
            raise failure
        return None

    @property
    def is_constant(self) -> bool:
        """Whether gradients were finite, and all of them zero."""
        return self._reached == set()

    def unreached(self, batches: Sequence[Batch]) -> tuple[keras.Variable, ...]:
        """Return the trained variables of which every gradient is zero, if one was finite."""
        variables = self._model.trainable_variables
        for batch, trial in itertools.product(batches, range(len(_TRIALS))):
            if self._reached is not None and len(self._reached) == len(variables):
                break
            values = self._moved(trial, *_TRIALS[trial])
            backend.attempt(self._pair, _varied(batch, trial), values)
        found = range(len(variables)) if self._reached is None else self._reached
        return tuple(each for number, each in enumerate(variables) if number not in found)

    def _pair(self, parts: dict[str, Any], values: list[Any]) -> list[list[Any]]:
        """Return squared norm and gradient of two rows; nothing if they are zero or not finite."""
        pair = [self._plain([], (values, _rows(parts, slice(row, row + 1)))) for row in range(2)]
        if not all(np.isfinite(part).all() for each in pair for part in each):
            return []
        self._reached = (self._reached or set()) | _nonzero(pair)
        return pair if _nonzero(pair) else []

    def _agrees(self, planned: list[Any], one: list[Any], other: list[Any]) -> bool:
        """Return whether norms and sums are those of the gradients of two rows."""
        norms, *sums = planned
        squares = [float(each[0]) for each in (one, other)]
        tolerance = 5e-2 if self._is_half else 1e-3
        if not np.allclose(norms[:2], np.sqrt(squares), rtol=tolerance, atol=1e-7):
            return False
        # A variable with a smaller share of the whole gradient is compared with this share.
        least = (1.0 if self._is_half else 0.01) * math.sqrt(max(squares))
        for total, *pair in zip(sums, one[1:], other[1:], strict=True):
            expected = _FACTORS[0, 0] * pair[0] + _FACTORS[1, 0] * pair[1]
            size = max(float(np.linalg.norm(expected)), least)
            if not float(np.linalg.norm(expected - total)) <= tolerance * size + 1e-7:
                return False
        return True

    def _norms_and_sums(self, _: Any, given: Any) -> list[Tensor]:
        """Return norms and weighted sums by the plan."""
        values, parts, factors, finite = given
        shares = 1.0 if self._added else ops.convert_to_tensor(_SHARES)
        with self._at(values):
            gradients, _ = per_example_gradients(
                self._model, Batch(**parts), self._plan, shares=shares
            )
            whole = ParameterGroups.single([variable.shape for variable in gradients.variables])
            norms = ops.sqrt(gradients.squared_norms(whole)[:, 0])
            sums = gradients.weighted_sums(factors, finite, whole).sums
            return [norms, *map(_for_comparison, sums)]

    def _plain_gradient(self, _: Any, given: Any) -> list[Tensor]:
        """Return the squared norm of the gradient of a single row, and the gradient."""
        values, parts = given
        with self._at(values):
            found = single_gradient(self._model, Batch(**parts))[0]
            square = sum(ops.sum(ops.square(each)) for each in found)
            return [square, *map(_for_comparison, found)]

    @contextmanager
    def _at(self, values: list[Tensor]) -> Iterator[None]:
        """Give variables other values, which a compiler would fold if they were constants.

        Layers draw nothing, and the outputs of some are added to the loss.
        """
        pairs = zip(self._held, values, strict=True)
        scope = keras.StatelessScope([(each, ops.cast(value, each.dtype)) for each, value in pairs])
        own_loss, added, is_over = self._model.compute_loss, list[Tensor](), [False]

        def noted(outputs: Tensor) -> Tensor:
            """Note the mean square of what a layer returns, after those of the same pass."""
            added[:] = [] if is_over[0] else added
            is_over[0] = False
            added.append(ops.mean(ops.square(ops.cast(outputs, "float32"))))
            return added[-1]

        def loss(**given: Any) -> Tensor:
            """Return the loss with what was added to it."""
            is_over[0] = True
            return sum(added, ops.sum(own_loss(**given)))

        # Keras calls a regularizer of activities with the outputs.
        changes: list[tuple[Any, str, Any]]
        changes = [(layer, "activity_regularizer", noted) for layer in self._added]
        changes += [(self._model, "compute_loss", loss)] if changes else []
        draws = keras_private.replaced_draws(_not_random)
        with scope, draws, keras_private.replaced_attributes(changes):
            yield

    def _moved(self, seed: int, factor: float, distance: float, keeps_sign: bool) -> list[Any]:
        """Return the values of all variables, where those of floats are moved."""
        generator, weights = np.random.default_rng(seed), set(map(id, self._model.weights))
        values = []
        for each in self._held:
            value, own = each.value, (factor if each.trainable else 1.0, distance)
            is_float = "float" in keras.backend.standardize_dtype(each.dtype)
            if distance and is_float and id(each) in weights:
                keeps = keeps_sign or not each.trainable  # Variances must keep their sign.
                moved = moved_value(backend.array_of(each), *own, keeps, generator)
                value = ops.convert_to_tensor(moved)
            values.append(value)
        return values


def _varied(batch: Batch, trial: int) -> dict[str, Any]:
    """Return three rows, the first two different, in another order and moved in each trial."""
    rows = finite_rows(batch)
    places = np.arange(-2 * trial, 3 - 2 * trial) % rows.num_rows
    scales = np.array([1.0, 1.25 if rows.num_rows == 1 else 1.0, 1.0]) * (1.0 + trial / 64.0)

    def taken(value: Tensor) -> np.ndarray:
        """Return the three rows."""
        return np.asarray(ops.convert_to_numpy(value)[places])

    def varied(value: Tensor) -> np.ndarray:
        """Return the three rows with slightly different numbers."""
        array = taken(value)
        return (array.T * scales).T.astype(array.dtype) if is_differentiable(value) else array

    parts = {"x": mapped(varied, rows.x), "y": mapped(taken, rows.y)}
    parts["sample_weight"] = mapped(taken, rows.sample_weight)
    return {name: filled(part, 3) for name, part in parts.items() if part is not None}


def _not_random(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function in the place of one of `keras.random`, which drops and orders nothing."""

    def fixed(*args: Any, **kwargs: Any) -> Tensor:
        """Return the first argument, or one half in the place of each random number."""
        if draw.__name__ in ("dropout", "shuffle"):
            return next(iter((*args, *kwargs.values())))
        return ops.full_like(draw(*args, **kwargs), 0.5)

    return fixed


def _scaled(gradient: list[Any], factor: float) -> list[Any]:
    """Return a squared norm and a gradient, times a factor."""
    square, *parts = gradient
    return [square * factor**2, *(part * factor for part in parts)]


def _nonzero(pair: list[list[Any]]) -> set[int]:
    """Return the numbers of the gradients that are not zero for both rows."""
    _, *gradients = zip(*pair, strict=True)
    return {number for number, parts in enumerate(gradients) if np.any(parts)}


def _for_comparison(gradient: Tensor) -> Tensor:
    """Return a gradient; of a large one, which may fill the memory, random sums of its rows.

    The sums have about the norm of the gradient (Johnson and Lindenstrauss 1984).
    """
    if math.prod(gradient.shape) <= _MOST_COMPARED:
        return gradient
    rows = ops.reshape(gradient, (-1, gradient.shape[-1]))
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (_NUM_SUMS, rows.shape[0]))
    return ops.matmul(ops.convert_to_tensor(signs / math.sqrt(_NUM_SUMS), gradient.dtype), rows)


def _rows(parts: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return some rows of a batch."""
    return dict(keras.tree.map_structure(lambda value: value[rows], parts))
