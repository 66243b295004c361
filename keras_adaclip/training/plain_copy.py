"""A plain Keras model with the layers and weights of a private one.

A mixin without a Keras base.
"""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import PrivacySpent
from keras_adaclip.activations import TemperedSigmoid
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers import Account
from keras_adaclip.training import weights
from keras_adaclip.training.spending import PrivacySpending

_OWN = "keras_adaclip>"


class PlainCopy(PrivacySpending):
    """The way from a private model to a plain one."""

    def to_keras(self, filepath: Any = None, *, delta: float | None = None) -> Any:
        """Return a plain Keras model with a copy of the weights, which needs this package no more.

        It has the layers, names and states of this model, and is not compiled. Save it, export it
        with `export`, and load it where this package is not installed. A `TemperedSigmoid` becomes
        Keras layers that compute the same, up to rounding.

        Args:
            filepath: None, or a `.keras` file. The plain model is saved there, and the privacy
                report beside it, as `.privacy.html` and `.privacy.json`, with the SHA-256 of the
                file.
            delta: Float in (0, 1), the delta of the report, with `filepath` alone; None as in
                `privacy_report`.

        Returns:
            A `keras.Sequential` for a sequential model, otherwise a functional `keras.Model`.

        Guarantees:
            The copy has the epsilon of this model: whatever is computed from the private weights
            without the data costs no privacy. Training the copy on private data further is not
            counted. If `privatize` makes the copy private in this process, its ledger goes on from
            this one; the plain file holds no ledger. To go on training later, save this model too.

        Raises:
            RuntimeError: If the privacy spent is not known.
            TypeError: If the model, or a private model inside it, is of a class of your own, or
                two classes of your layers have one name.
            ValueError: If `delta` is given without `filepath`, or one is out of range.

        Example:

        >>> import keras
        >>> from keras_adaclip import PrivateSequential
        >>> model = PrivateSequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> plain = model.to_keras()
        >>> type(plain) is keras.Sequential
        True
        """
        if filepath is None and delta is not None:
            raise ValueError(
                "Argument `delta` is that of the report which is saved beside the file. Give "
                f"`model.to_keras('model.keras', delta={delta!r})`, or leave it out. "
                f"Received: filepath=None, delta={delta!r}"
            )
        if filepath is not None and Path(filepath).suffix != ".keras":
            raise ValueError(
                f"Argument `filepath` must end in `.keras`. Received: filepath={filepath!r}"
            )
        if filepath is not None:
            # A wrong delta is refused before anything is written.
            PrivacySpent.from_ledger(self.privacy_ledger, self._delta_or_default(delta))
        made, is_public = self._preprocessing_in_words(), self.public_preprocessing
        if made and not is_public:
            warnings.warn(
                f"The plain model holds tables that `adapt` has made from data: {made}. Epsilon "
                "does not cover them, unless the data were public: `privatize(model, "
                "public_preprocessing=True)`.",
                stacklevel=2,
            )
        keras_private.write_back_variables(self)
        form = self._form_of_copy()
        plain = _plain_copy(form)
        copies = [*plain.variables, *keras_private.flatten_layers(plain)]
        weights.put_on_account(copies, Account(self.privacy_ledger))
        weights.from_array(plain.weights, weights.to_array(form))
        weights.note_public_changes(plain.weights, weights.public_changes(form.weights))
        if filepath is not None:
            plain.save(filepath)
            report = self.privacy_report(delta, model_file=filepath)
            for ending in (".privacy.html", ".privacy.json"):
                report.save(Path(filepath).with_suffix(ending))
        return plain

    def _form_of_copy(self) -> Any:
        """Return the model whose layers a plain copy has, which shares the weights of this one."""
        return self


def _plain_copy(model: Any) -> keras.Model:
    """Return a plain model of the same layers, with weights of its own and not compiled.

    Args:
        model: A private model.

    Raises:
        TypeError: If the model, or a private model inside it, is of a class of the user's, or two
            classes of layers have one name.
    """
    layers = keras_private.flatten_layers(model)
    for layer in layers:
        if isinstance(layer, PrivacySpending) and not _is_of_package(type(layer)):
            _refuse(layer)
    config = keras.saving.serialize_keras_object(model)
    config = _plain_config({**config, "compile_config": {}}, {})
    # The config comes from this process, so that code in it (`Lambda`) is that of the model.
    plain = keras.saving.deserialize_keras_object(
        config, custom_objects=_own_classes(layers), safe_mode=False
    )
    _copy_state(model, plain)
    return plain


def _own_classes(layers: list[Any]) -> dict[str, type]:
    """Return the classes of the user's layers by the names under which Keras looks for them.

    Raises:
        TypeError: If two of them have one name: Keras would take one for the other.
    """
    classes: dict[str, type] = {}
    for layer in layers:
        cls = type(layer)
        if cls.__module__.split(".")[0] == "keras":
            continue
        name = keras.saving.get_registered_name(cls)
        if classes.setdefault(name, cls) is not cls:
            raise TypeError(
                f"`to_keras` cannot tell two classes of layers apart, which are both called "
                f"{name!r}. Register each under a name of its own: "
                "`@keras.saving.register_keras_serializable('my_package', 'my_name')`. Received: "
                f"{classes[name]} and {cls}"
            )
    return classes


def _is_of_package(cls: type) -> bool:
    """Return whether Keras knows a class as one of this package."""
    return keras.saving.get_registered_name(cls).startswith(_OWN)


def _refuse(layer: Any) -> None:
    """Raise for a model of a class of the user's, which needs this package wherever it loads."""
    cls = type(layer).__name__
    raise TypeError(
        f"`to_keras` copies models made of inputs and outputs or of a list of layers, and {cls!r} "
        "is a class of your own with a private base. Derive the same class from `keras.Model` or "
        "`keras.Sequential`, build it, and load the weights into it: `model.save_weights("
        "'model.weights.h5')`, then `plain.load_weights('model.weights.h5')`. Received: model "
        f"{layer.name!r} of type {cls}"
    )


def _plain_config(config: Any, layer: Mapping[str, Any]) -> Any:
    """Return a config in which plain parts replace those of this package.

    Args:
        config: The config of a layer, or a part of it.
        layer: The config of the layer that it is a part of.
    """
    if isinstance(config, (list, tuple)):
        return type(config)(_plain_config(each, layer) for each in config)
    if not isinstance(config, dict):
        return config
    if "dtype" in config:
        layer = config
    name = str(config.get("registered_name"))
    if name == keras.saving.get_registered_name(TemperedSigmoid):
        return _plain_sigmoid(config["config"], layer)
    if name.startswith(_OWN):
        config = {**config, **_header(config), "compile_config": {}}
    return {key: _plain_config(value, layer) for key, value in config.items()}


def _header(config: dict[str, Any]) -> dict[str, Any]:
    """Return the class of the plain model for the config of a private one, as Keras writes it."""
    if "input_layers" in config["config"]:
        inputs = keras.Input((1,))
        plain = keras.Model(inputs, keras.layers.Identity()(inputs))
    else:
        plain = keras.Sequential()
    written = keras.saving.serialize_keras_object(plain)
    return {key: written[key] for key in ("module", "class_name", "registered_name")}


def _plain_sigmoid(config: dict[str, Any], layer: Mapping[str, Any]) -> Any:
    """Return the config of layers that compute a `TemperedSigmoid`: Keras has no such activation.

    Args:
        config: That of the `TemperedSigmoid`.
        layer: The config of the layer whose activation it is.
    """
    dtype = keras.dtype_policies.get(layer.get("dtype")).compute_dtype
    layers = [
        keras.layers.Rescaling(config["inverse_temperature"], dtype=dtype),
        keras.layers.Activation("sigmoid", dtype=dtype),
        keras.layers.Rescaling(config["scale"], -config["offset"], dtype=dtype),
    ]
    return keras.saving.serialize_keras_object(keras.Sequential(layers))


def _copy_state(model: Any, plain: keras.Model) -> None:
    """Copy weights, vocabularies and states of seed generators, as Keras saves and loads them."""
    for layer, copy in zip(_with_state(model), _with_state(plain), strict=True):
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        copy.load_own_variables({key: _copied(value) for key, value in store.items()})
        if hasattr(layer, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                copy.load_assets(folder)
    for state, copy in zip(*map(keras_private.seed_generator_states, (model, plain)), strict=True):
        copy.assign(_copied(state))


def _with_state(model: Any) -> list[Any]:
    """Return the layers that have something to copy; those of plain activations have nothing."""
    layers = keras_private.flatten_layers(model)
    if isinstance(preprocessor := getattr(model, "preprocessor", None), keras.Layer):
        layers += keras_private.flatten_layers(preprocessor)  # A task of KerasHub hides it.
    return [
        layer
        for layer in layers
        if keras_private.own_variables(layer) or hasattr(layer, "save_assets")
    ]


def _copied(value: Any) -> np.ndarray:
    """Return an array of its own: JAX may reuse the memory of a variable that is trained on."""
    return np.array(keras.ops.convert_to_numpy(value))
