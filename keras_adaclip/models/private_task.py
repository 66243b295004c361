"""Private models of tasks of KerasHub, and `privatize`.

A task is a functional model with a preprocessor of what `fit` and `predict` are given.
Nothing of KerasHub is imported here: a task comes with its package.
"""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from keras_adaclip.backend import keras_private
from keras_adaclip.models.private_model import PrivateFunctional, PrivateModel, PrivateSequential
from keras_adaclip.models.private_training import PrivateTraining
from keras_adaclip.sampling import from_frames
from keras_adaclip.training import (
    converted,
    own_methods,
    refuse_own_methods,
    training_data,
    without_batch_normalization,
)

_PACKAGE = "keras_hub."
# Whose preprocessing keeps rows apart.
_PREPROCESSING = (_PACKAGE, "keras.src.layers.preprocessing.")


def is_task(model: Any) -> bool:
    """Return whether a model is a task of KerasHub."""
    names = [(cls.__module__.startswith(_PACKAGE), cls.__name__) for cls in type(model).__mro__]
    return (True, "Task") in names


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PrivateTask(PrivateFunctional):
    """The private model of a task of KerasHub, made by `privatize(task)`.

    It trains the weights of the task. `fit`, `evaluate` and `predict` take what those of the task
    take: texts or images in arrays and lists, or a `tf.data.Dataset`. The task's preprocessor runs
    once, before rows are drawn; a row is what it makes of one text or image. Other data sets must
    hold preprocessed rows.

    Args:
        task: The task.
        replace_batch_normalization: Whether group normalizations replace batch normalizations.

    Guarantees:
        Those of `PrivateModel`, where a unit is a row that the preprocessor makes. A text that is
        cut into several rows before it is given is several units.
    """

    def __init__(self, task: Any, replace_batch_normalization: bool = False) -> None:
        core = without_batch_normalization(task) if replace_batch_normalization else task
        super().__init__(core.input, core.output, name=task.name)
        # Not a layer of this model: its weights are here already.
        self._given = SimpleNamespace(task=task, is_replaced=core is not task)
        self.preprocessor = task.preprocessor

    @property
    def task(self) -> Any:
        """The task, with the weights of this model: for `generate`, samplers and `save_to_preset`.

        What it computes from the weights costs no privacy. What it is trained on is not counted.

        Raises:
            ValueError: If group normalizations have replaced layers, so that weights differ.
        """
        if self._given.is_replaced:
            raise ValueError(
                "The task has other layers than this model, whose batch normalizations are "
                "replaced. Use `predict` and `evaluate` of this model, or `to_keras()`."
            )
        return self._given.task

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = "auto",
        loss_weights: Any = "auto",
        metrics: Any = "auto",
        weighted_metrics: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Compile as other private models; loss and metrics are by default those of the task.

        Args:
            optimizer: A private optimizer.
            loss: As for Keras; `"auto"` is the loss with which the task is compiled.
            loss_weights: As for Keras, or `"auto"`.
            metrics: As for Keras, or `"auto"`.
            weighted_metrics: As for Keras, or `"auto"`.
            **kwargs: Further arguments of `compile`.
        """
        task, given = self._given.task, {"loss": loss, "loss_weights": loss_weights}
        given |= {"metrics": metrics, "weighted_metrics": weighted_metrics}
        config = task.get_compile_config() or {}
        for name, value in given.items():
            if isinstance(value, str) and value == "auto":
                # Metrics have a state, and those of the task stay its own.
                is_loss = name == "loss"
                own = None if is_loss else keras.saving.deserialize_keras_object(config.get(name))
                given[name] = task.loss if is_loss else own
        super().compile(optimizer, **given, **kwargs)

    def fit(  # type: ignore[override]
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        *,
        sample_weight: Any = None,
        validation_data: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Preprocess and train privately, with the arguments of other private models.

        Args:
            x: Texts or images, as for the task.
            y: Labels; None where the preprocessor makes them.
            batch_size: As for other private models.
            epochs: As for Keras.
            verbose: As for Keras.
            sample_weight: As for Keras; None where the preprocessor makes them.
            validation_data: As for Keras. It is preprocessed too.
            **kwargs: As for other private models.

        Returns:
            Keras's `History`.
        """
        if validation_data is not None:
            held_out = keras.utils.unpack_x_y_sample_weight(validation_data)
            validation_data = keras.utils.pack_x_y_sample_weight(*self._preprocessed(*held_out))
        x, y, sample_weight = self._preprocessed(x, y, sample_weight)
        options = {"sample_weight": sample_weight, "validation_data": validation_data}
        return super().fit(x, y, batch_size, epochs, verbose, **options, **kwargs)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Preprocess and train privately on one batch."""
        return super().train_on_batch(*self._preprocessed(x, y, sample_weight), *args, **kwargs)

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Preprocess and evaluate as Keras does."""
        if not kwargs.get("_use_cached_eval_dataset"):  # Within `fit`, which has preprocessed.
            x, y, sample_weight = self._preprocessed(x, y, sample_weight)
        return super().evaluate(x, y, *args, sample_weight=sample_weight, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Preprocess and predict as Keras does."""
        return super().predict(self._preprocessed(x)[0], *args, **kwargs)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Preprocess and evaluate one batch."""
        return super().test_on_batch(*self._preprocessed(x, y, sample_weight), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Preprocess and predict one batch."""
        return super().predict_on_batch(self._preprocessed(x)[0])

    def _evaluate_rows(self, *args: Any) -> Any:
        """Evaluate rows that are preprocessed."""
        return super().evaluate(*args)

    def _form_of_copy(self) -> keras.Model:
        """Return the model whose plain copy is that of this one."""
        if self._given.is_replaced:
            return keras.Model(self.input, self.output, name=self.name)
        return self._given.task

    def get_config(self) -> dict[str, Any]:
        """Return the task as plain values."""
        task = keras.saving.serialize_keras_object(self._given.task)
        # How this model is compiled is saved beside it.
        return {
            "task": {**task, "compile_config": {}},
            "replace_batch_normalization": self._given.is_replaced,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "PrivateTask":
        """Return a model with a new task."""
        task = keras.saving.deserialize_keras_object(config["task"], custom_objects)
        return cls(task, config["replace_batch_normalization"])

    def _preprocessed(self, x: Any, y: Any = None, sample_weight: Any = None) -> tuple[Any, ...]:
        """Return inputs, targets and weights as the preprocessor of the task makes them.

        Raises:
            ValueError: If the preprocessor is not KerasHub's: it may mix rows.
        """
        task = self._given.task
        if task.preprocessor is None or x is None:
            return x, y, sample_weight
        layers: list[Any] = [task.preprocessor]
        if isinstance(task.preprocessor, keras.Layer):
            layers = keras_private.flatten_layers(task.preprocessor)
        for part in [task.preprocess_samples, *map(type, layers)]:
            if not getattr(part, "__module__", "").startswith(_PREPROCESSING):
                raise ValueError(
                    "The preprocessor of the task must be one of KerasHub, with its parts, which "
                    "turns each row alone into inputs. Apply yours to each row, set "
                    f"`model.task.preprocessor = None`, and give the results. Received: {part}"
                )
        if hasattr(x, "element_spec"):  # A `tf.data.Dataset`.
            return x.map(task.preprocess_samples), y, sample_weight
        parts = from_frames((x, y, sample_weight))
        if not training_data.is_array_data(parts[0]):
            return x, y, sample_weight
        rows = task.preprocess_samples(*keras.tree.map_structure(_with_texts, parts))
        found = keras.utils.unpack_x_y_sample_weight(rows)
        made = tuple(keras.tree.map_structure(_as_array, part) for part in found)
        if sample_weight is not None and np.shape(made[2]) != np.shape(sample_weight):
            raise ValueError(
                "The preprocessor makes the weights of tokens itself and drops yours. Leave "
                "`sample_weight` out, or preprocess the rows, weight them, set "
                "`model.task.preprocessor = None`, and give the results. "
                f"Received: sample_weight of shape {np.shape(sample_weight)}"
            )
        return made


def _with_texts(part: Any) -> Any:
    """Return an array of strings as a list, which preprocessors take, and other parts unchanged."""
    is_text = isinstance(part, np.ndarray) and part.dtype.kind in "OSU"
    return part.tolist() if is_text else part


def _as_array(part: Any) -> Any:
    """Return a tensor of any framework as a NumPy array, None unchanged."""
    if keras.ops.is_tensor(part):
        return keras.ops.convert_to_numpy(part)
    return None if part is None else np.asarray(part)


def privatize(
    model: keras.Model,
    replace_batch_normalization: bool = False,
    *,
    public_preprocessing: bool = False,
) -> Any:
    """Return a private model that shares the layers and weights of a Keras model.

    The new model is not compiled.

    Args:
        model: A Functional or Sequential model, or a task of KerasHub. It is not changed, but
            shares its weights with the new model.
        replace_batch_normalization: Whether every `BatchNormalization` is replaced by a new
            `GroupNormalization`. The weights of the other layers stay shared.
        public_preprocessing: Your word that what `adapt` has made of data (vocabularies, moments,
            boundaries) came from public data. Otherwise `check`, the report and `to_keras` name
            such layers.

    Returns:
        A `PrivateModel` or a `PrivateSequential`, to be compiled with a `DPOptimizer`. That of a
        task takes texts or images, as the task does, and its `task` is the task with the trained
        weights, for `generate` and `save_to_preset`.

    Raises:
        TypeError: If `model` is a subclassed model, or no Keras model, or if its class replaces
            methods of Keras (`compute_loss`, `fit`), which the new model would not have.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> type(privatize(model)).__name__
    'PrivateSequential'
    """
    if isinstance(model, PrivateTraining):
        raise TypeError("The model is private already. Received: a private model")
    if is_task(model):
        refuse_own_methods(
            model,
            own_methods(model),
            "Train its layers without them: `keras_adaclip.PrivateModel(task.input, task.output)`.",
        )
        private: Any = PrivateTask(model, replace_batch_normalization)
    else:
        private = converted(model, PrivateSequential, PrivateModel, replace_batch_normalization)
    private.public_preprocessing = public_preprocessing
    return private
