"""Losses and metrics of a compiled model, and the logits of which outputs are probabilities.

As in `keras_private`, all private names of Keras that this needs are here.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
from keras.src import backend as keras_backend

from keras_adaclip.backend.keras_private import (
    attach_mask,
    flatten_layers,
    mask_of,
    outputs_for,
    own_methods,
    replaced_attributes,
)

Tensor = Any


# The tensors that sigmoid and softmax returned, by their `id`, each with its logits for either. A
# tensor of JAX takes no attributes.
_LOGITS: dict[int, tuple[weakref.ref[Any], list[Tensor | None]]] = {}


def marks_of(value: Tensor) -> list[Tensor | None]:
    """Return the mask of a tensor and the logits of which it is the sigmoid or softmax, or None."""
    known, logits = _LOGITS.get(id(value), (lambda: None, [None, None]))
    return [mask_of(value), *(logits if known() is value else (None, None))]


def attach_marks(value: Tensor, marks: Iterable[Tensor | None]) -> Tensor:
    """Attach mask and logits to a tensor, and return the tensor."""
    mask, *logits = marks
    given = [each for each in logits if each is not None]
    if given:
        key = id(value)
        _LOGITS[key] = weakref.ref(value, lambda _: _LOGITS.pop(key, None)), logits
        if keras.backend.backend() == "tensorflow":
            value._keras_logits = given[0]  # Keras's cross-entropies look for it there.
    return attach_mask(value, mask)


def _noting_logits(function: Callable[..., Tensor], place: int) -> Callable[..., Tensor]:
    """Return sigmoid or softmax as a function that attaches the logits to its result."""

    @functools.wraps(function)
    def activation(x: Tensor, axis: int = -1, *args: Any, **kwargs: Any) -> Tensor:
        """Compute probabilities."""
        own = {} if place == 0 else {"axis": axis}
        value = function(x, *args, **own, **kwargs)
        if keras.ops.is_tensor(x) and axis in (-1, len(x.shape) - 1):
            logits = [x if number == place else None for number in range(2)]
            attach_marks(value, [mask_of(value), *logits])
        return value

    return activation


for _place, _name in enumerate(("sigmoid", "softmax")):
    setattr(keras_backend.nn, _name, _noting_logits(getattr(keras_backend.nn, _name), _place))
# Cross-entropies of the results of sigmoid and of softmax, in this order.
_CROSS_ENTROPIES = (
    ("binary_crossentropy", "binary_focal_crossentropy"),
    ("categorical_crossentropy", "sparse_categorical_crossentropy"),
)


def cross_entropies_of_logits(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context in which compiled cross-entropies of probabilities take their logits.

    The value is the same, except where Keras clips probabilities at 1e-7, beyond which the gradient
    is zero.

    Args:
        model: A compiled model.
    """
    compiled = model._compile_loss
    if compiled is None:
        return nullcontext()
    call = functools.partial(_called_on_logits, compiled, compiled.call)
    return replaced_attributes([(compiled, "call", call)])


def _called_on_logits(
    compiled: Any, call: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Return the compiled loss, with cross-entropies of logits where these are known."""
    given, changed, uses = keras.tree.flatten(y_pred), list[Any](), dict[int, list[Any]]()
    for loss, number in _numbered_losses(compiled) if compiled.built else ():
        uses.setdefault(id(loss), [loss]).append(number)
    for loss, *own in uses.values():
        logits = [None if number is None else logits_for(loss, given[number]) for number in own]
        if all(each is not None for each in logits):  # Outputs may share a loss.
            changed.append((loss, "_fn_kwargs", {**loss._fn_kwargs, "from_logits": True}))
            for number, each in zip(own, logits, strict=True):
                given[number] = attach_mask(each, mask_of(given[number]))
    with replaced_attributes(changed):
        return call(y_true, keras.tree.pack_sequence_as(y_pred, given), sample_weight)


def _numbered_losses(compiled: Any) -> list[tuple[Any, int | None]]:
    """Return each loss with the number of its output, None if it has several."""
    structure = keras.tree.flatten_with_path(compiled._y_pred_build_structure)
    numbers = {path: number for number, (path, _) in enumerate(structure)}
    return [(entry.loss, numbers.get(entry.path)) for entry in compiled._flat_losses]


def losses_without_logits(model: keras.Model, y_pred: Any) -> list[str]:
    """Return the names of cross-entropies of probabilities whose logits are not known.

    Args:
        model: A compiled model, built or not.
        y_pred: Its outputs for some rows.
    """
    compiled, given = model._compile_loss, keras.tree.flatten(y_pred)
    if not compiled.built:
        compiled = type(compiled)(compiled._user_loss, output_names=compiled.output_names)
        compiled.build(y_pred, y_pred)
    return [
        loss.name
        for loss, number in _numbered_losses(compiled)
        if number is not None
        and any(kind_of_loss(loss)[0] in names for names in _CROSS_ENTROPIES)
        and not kind_of_loss(loss)[1].get("from_logits")
        and logits_for(loss, given[number]) is None
    ]


def logits_for(loss: Any, value: Tensor) -> Tensor | None:
    """Return the logits of predictions of which a loss of Keras is the cross-entropy, or None."""
    name, given = kind_of_loss(loss)
    if given.get("from_logits") or given.get("axis", -1) != -1:
        return None
    places = (place for place, names in enumerate(_CROSS_ENTROPIES, 1) if name in names)
    return next((marks_of(value)[place] for place in places), None)


def layer_of_logits(model: keras.Model) -> keras.layers.Dense | None:
    """Return the `Dense` layer whose outputs are the logits of a classifier, and nothing else.

    None unless a cross-entropy is the only loss of a functional model, each row has one label, the
    layer is trainable, called once, and shares no weight, and every layer is Keras's own.

    Args:
        model: A compiled model whose loss is built.
    """
    layers, kinds = flatten_layers(model), keras.layers
    graph = getattr(model, "_functional", model)
    outputs = getattr(graph, "outputs", None)
    losses = [] if model._compile_loss is None else model._compile_loss._flat_losses
    is_own_code = own_methods(model, ("call", "compute_loss"))
    if not isinstance(outputs, list) or len(outputs) != 1 or len(losses) != 1 or is_own_code:
        return None
    name, options = kind_of_loss(losses[0].loss)
    is_binary, last = name == "binary_crossentropy", outputs[0]._keras_history.operation
    names = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
    is_plain = not options.get("label_smoothing") and options.get("ignore_class") is None
    shape = outputs[0].shape
    if name not in names or not is_plain or len(shape) != 2 or is_binary != (shape[1] == 1):
        return None
    probability = "linear" if options.get("from_logits") else "sigmoid" if is_binary else "softmax"
    if getattr(last, "activation", None) is not keras.activations.get(probability):
        return None
    layer = last
    if type(last) is kinds.Activation:
        (given,) = last._inbound_nodes[0].input_tensors
        layer = given._keras_history.operation
        if getattr(layer, "activation", None) is not keras.activations.linear:
            return None
    if type(layer) is not kinds.Dense or not layer.trainable or layer.lora_enabled:
        return None
    if layer.quantization_mode or layer.kernel_constraint or layer.bias_constraint:
        return None
    graphs = [getattr(getattr(each, "_functional", each), "_nodes_by_depth", {}) for each in layers]
    nodes = [node for graph in graphs for part in graph.values() for node in part]
    owners = [each for each in layers for v in each._trainable_variables if v is layer.kernel]

    # Others may mix rows at inference alone, or draw by the place of a row; `JaxLayer` too.
    ours = ("keras.src.layers.", "keras.src.models.")
    is_known = all(
        type(each).__module__.startswith(ours) and type(each) is not kinds.Lambda
        for each in layers[1:]
    )
    is_alone = len(owners) == 1 and [node.operation for node in nodes].count(layer) == 1
    return layer if is_alone and is_known else None


def logits_of(model: keras.Model, y_pred: Tensor) -> Tensor:
    """Return the logits of a model of which `layer_of_logits` is known, from its outputs."""
    logits = logits_for(model._compile_loss._flat_losses[0].loss, y_pred)
    return y_pred if logits is None else logits


def is_of_keras(loss: Any) -> bool:
    """Return whether neither the class nor the function of a loss is the user's."""
    # The class of a function's wrapper is Keras's, and so is the function of a user's subclass.
    origins = (type(loss), getattr(loss, "fn", type(loss)))
    return all(getattr(each, "__module__", "").startswith("keras.") for each in origins)


def kind_of_loss(loss: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of the function of a loss of Keras and its options, "" for other losses."""
    name = getattr(getattr(loss, "fn", None), "__name__", "") if is_of_keras(loss) else ""
    return name, getattr(loss, "_fn_kwargs", {})


def given_to_losses(
    model: keras.Model, x: Any, y: Any, sample_weight: Any
) -> list[tuple[Any, Any, np.ndarray, Any]]:
    """Return each compiled loss with the targets, outputs and weights that Keras gives it.

    Args:
        model: A compiled and built model.
        x: A few inputs, for the shapes of the outputs.
        y: The targets, which the result holds.
        sample_weight: Their weights, or None.

    Returns:
        For each loss the targets, zeros of the shape of the output for `x`, and the weights.
    """
    compiled, found = model._compile_loss, list[Any]()
    if compiled is None or y is None:
        return found

    def noting(entry: Any) -> Any:
        """Return a loss that notes what it is called with."""

        def note(*given: Any) -> float:
            """Note the arguments."""
            found.append((entry.loss, *given))
            return 0.0

        return entry._replace(loss=note)

    outputs = keras.tree.map_structure(lambda each: np.zeros(each.shape), outputs_for(model, x))
    noted = [noting(entry) for entry in compiled._flat_losses]
    with replaced_attributes([(compiled, "_flat_losses", noted)]), keras.StatelessScope():
        compiled.call(y, outputs, sample_weight)
    return found


def marked_like(value: Tensor, other: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `other` with the mask and logits of `value`, after `change`."""
    return attach_marks(other, [None if each is None else change(each) for each in marks_of(value)])


def output_loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the `Mean` metrics of the single losses of a model with several outputs."""
    compiled_loss = model._compile_loss
    return [] if compiled_loss is None else list(compiled_loss.metrics)


def own_sums(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the sums and means among the metrics that are attributes of a model."""
    kinds = (keras.metrics.Mean, keras.metrics.Sum)
    return [each for each in model._metrics if isinstance(each, kinds)]


def compiled_losses(model: keras.Model) -> list[Any]:
    """Return the loss object of each output, or no objects before they are built."""
    compiled_loss = model._compile_loss
    if compiled_loss is None or not compiled_loss.built:
        return []
    return [entry.loss for entry in compiled_loss._flat_losses]


class LossOfCounted(keras.metrics.Mean):
    """The mean loss, which remembers how many units of the epoch were left out."""

    def __init__(self) -> None:
        super().__init__(name="loss")
        self.left_out = self.add_variable((), "zeros", name="left_out")

    def count_left_out(self, left_out: Tensor) -> None:
        """Count the units of a step that a bool tensor marks."""
        number = keras.ops.sum(keras.ops.cast(left_out, self.left_out.dtype))
        self.left_out.assign_add(number)

    def result(self) -> Tensor:
        """Return the mean, NaN if units were left out and none is counted."""
        is_lost = keras.ops.logical_and(self.count == 0, self.left_out > 0)
        return keras.ops.where(is_lost, float("nan"), super().result())


def loss_tracker(model: keras.Model) -> LossOfCounted:
    """Return the metric that reports `loss`."""
    return model._loss_tracker


def compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the single metrics of `compile(metrics=..., weighted_metrics=...)`.

    Before Keras builds them, these are the metrics that were given as objects.
    """
    compiled = model._compile_metrics
    if compiled is None or compiled.built:
        return [] if compiled is None else list(compiled.metrics)
    given = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return [metric for metric in given if isinstance(metric, keras.metrics.Metric)]


# Metrics that count entries and not rows, besides those of `keras.metrics.IoU`.
_COUNTS_OF_ENTRIES = tuple(
    getattr(keras.metrics, name)
    for name in (
        *("AUC", "FalseNegatives", "FalsePositives", "Precision", "PrecisionAtRecall", "Recall"),
        *("RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"),
        *("TrueNegatives", "TruePositives"),
    )
)


def masked_metrics(
    model: keras.Model, y: Any, y_pred: Any, sample_weight: Any, mask: Tensor
) -> Iterator[tuple[keras.metrics.Metric, Tensor, Tensor, Tensor]]:
    """Yield the compiled metrics with target, output, and weights that are zero without `mask`.

    Keras passes no weights to `metrics=[...]`. Here they get the mask, and `weighted_metrics` get
    the mask times the sample weights.

    Args:
        model: A compiled model whose metrics are built.
        y: Targets of shape `(batch_size, ...)`.
        y_pred: Predictions of shape `(batch_size, ...)`.
        sample_weight: None, or weights of shape `(batch_size, ...)`.
        mask: Bool tensor of shape `(batch_size,)`.
    """
    compiled = model._compile_metrics
    if compiled is None:
        return
    targets = compiled._flatten_y(y)
    outputs = compiled._flatten_y(y_pred)
    present = keras.ops.cast(mask, "float32")
    flat = [None] if sample_weight is None else compiled._flatten_y(sample_weight)
    flat = flat if len(flat) == len(targets) else [flat[0]] * len(targets)
    kinds = compiled._flat_metrics, compiled._flat_weighted_metrics
    for target, output, weight, *both in zip(targets, outputs, flat, *kinds, strict=False):
        for metrics, own in zip(both, (present, masked_weight(weight, present)), strict=True):
            for metric in metrics.metrics if metrics else ():
                yield metric, target, output, _weights_for(metric, own, output)


def updating_metrics_with(
    model: keras.Model, update: Callable[..., None]
) -> AbstractContextManager[None]:
    """Return a context in which Keras's `compute_metrics` updates the compiled metrics otherwise.

    Args:
        model: A compiled model.
        update: Takes targets, predictions and weights.
    """
    compiled = model._compile_metrics
    return replaced_attributes([] if compiled is None else [(compiled, "update_state", update)])


def returns_one_number(metric: keras.metrics.Metric, target: Tensor, output: Tensor) -> bool:
    """Return whether the function of a metric returns one number for a whole batch."""
    if not isinstance(metric, keras.metrics.MeanMetricWrapper):
        return False
    return not metric._fn(target, output, **metric._fn_kwargs).shape


def _weights_for(metric: keras.metrics.Metric, weight: Tensor, prediction: Tensor) -> Tensor:
    """Return weights of the shape of what a metric counts: rows, positions or entries."""
    shape = list(keras.ops.shape(prediction))
    if isinstance(metric, keras.metrics.IoU):
        if not metric.sparse_y_pred:
            shape.pop(metric.axis)
    elif not isinstance(metric, _COUNTS_OF_ENTRIES):
        return _with_rank_of_mask(weight, prediction)
    trailing = (1,) * (len(shape) - len(weight.shape))
    return keras.ops.broadcast_to(
        keras.ops.reshape(weight, (*keras.ops.shape(weight), *trailing)), shape
    )


def without_scaling_for_replicas() -> AbstractContextManager[None]:
    """Return a context in which losses are not divided by the number of `tf.distribute` replicas.

    Keras divides because it adds up the losses of replicas. The loss of one example is on one
    replica alone.
    """
    if keras.backend.backend() != "tensorflow":
        return nullcontext()
    from keras.src.losses import loss

    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    return replaced_attributes((loss, name, lambda value: value) for name in names)


def masked_weight(weight: Tensor | None, present: Tensor) -> Tensor:
    """Return sample weights (None: ones), zero where `present` of shape `(batch_size,)` is zero."""
    if weight is None:
        return present
    weight = keras.ops.cast(weight, "float32")
    trailing = (1,) * (len(weight.shape) - 1)
    return weight * keras.ops.reshape(present, (-1, *trailing))


def _with_rank_of_mask(weight: Tensor, prediction: Tensor) -> Tensor:
    """Return the weight in the shape of the prediction's mask, by which Keras multiplies it."""
    mask = mask_of(prediction)
    if mask is None or len(mask.shape) <= len(weight.shape):
        return weight
    for _ in range(len(mask.shape) - len(weight.shape)):
        weight = keras.ops.expand_dims(weight, -1)
    return weight * keras.ops.ones_like(mask, dtype="float32")
