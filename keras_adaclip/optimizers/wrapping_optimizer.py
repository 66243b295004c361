"""A Keras optimizer around another one, whose variables are loaded all together or not at all."""

import abc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip._configurable import constructor_parameters, printed
from keras_adaclip.backend import keras_private

Tensor = Any

NO_LEGACY_FILE = (
    "A private model cannot be saved as an HDF5 file of the whole model (`.h5`), which would hold "
    "the key of the noise and not the privacy ledger. Save it as `.keras`, or its weights as "
    "`.weights.h5`."
)
# Options of an optimizer that break clipping or noise, with the effect of each.
FORBIDDEN_OPTIONS = {
    "clipnorm": "would clip the noised mean a second time, variable by variable",
    "clipvalue": "would clip the noised mean a second time, coordinate by coordinate",
    "global_clipnorm": "would clip the noised mean a second time",
    "gradient_accumulation_steps": "would apply several noised means as one; use "
    "`microbatch_size` for memory, or larger batches (cohorts)",
    "loss_scale_factor": "would scale the noised mean down; norms, sums and noise are float32",
}


class WrappingOptimizer(keras_private.NoTensorFlowCheckpoint, keras.optimizers.Optimizer):
    """Delegates to an inner optimizer, and has further variables.

    Attributes:
        own_variables: The optimizer's variables, without those of the inner optimizer.
        secret_variables: Those with keys of random numbers, whose values must not leave the
            process.

    Args:
        inner_optimizer: The optimizer that applies the updates: an instance, its name or its
            config.
        name: Name of the optimizer.
    """

    _plain_model_message: ClassVar[str]

    def __init__(self, inner_optimizer: Any, name: str | None) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = check_plain_optimizer("optimizer", inner_optimizer)
        self.own_variables: list[keras.Variable] = []
        self.secret_variables: list[keras.Variable] = []
        self._built_for: list[int] = []
        self._model: Callable[[], keras.Model | None] | None = None

    def mark_for_private_model(self, model: keras.Model) -> None:
        """Allow `build`: the model passes the contributions of single units.

        Args:
            model: The private model that is compiled with this optimizer.
        """
        self._model = weakref.ref(model)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the variables of the inner optimizer and of this one.

        Args:
            variables: The trainable variables.

        Raises:
            ValueError: If no private model was compiled with this optimizer.
        """
        self._refuse_plain_model()
        if self.built:
            return
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        self._build_state(variables)
        self._built_for = [id(variable) for variable in variables]
        super().build(variables)

    def is_built_for(self, variables: Sequence[keras.Variable]) -> bool:
        """Return whether the optimizer was built for exactly these variables.

        Args:
            variables: The trainable variables of a model, in order.
        """
        return [id(variable) for variable in variables] == self._built_for

    @property
    def variables(self) -> list[keras.Variable]:
        """Clipping norm, noise state and ledger, then the inner optimizer's variables."""
        return [*self.own_variables, *self.inner_optimizer.variables]

    def finalize_variable_values(self, var_list: Any) -> None:
        """Delegate to the inner optimizer (moving averages of weights)."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Delegate to the inner optimizer, which decays the weights."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss unchanged: scaling it would scale the contributions."""
        return loss

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        """The number of steps, counted by the inner optimizer."""
        return self.inner_optimizer.iterations

    # Saving

    def get_config(self) -> dict[str, Any]:
        """Return every constructor argument under its own name.

        Raises:
            ValueError: If Keras asks for it to write an HDF5 file of the whole model.
        """
        refuse_legacy_file()
        serialize = keras.saving.serialize_keras_object
        return {name: serialize(value) for name, value in self._arguments().items()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Return the optimizer that `get_config` describes."""
        # A scope takes the place of that around it.
        scope = (
            keras.saving.custom_object_scope(custom_objects) if custom_objects else nullcontext()
        )
        with scope:
            return cls(**config)

    def _arguments(self) -> dict[str, Any]:
        """Return every constructor argument under its own name."""
        names = [name for name in constructor_parameters(type(self)) if hasattr(self, name)]
        return {
            "optimizer": self.inner_optimizer,
            **{name: getattr(self, name) for name in names if name != "optimizer"},
        }

    def __repr__(self) -> str:
        return printed(self, self._arguments())

    def save_own_variables(self, store: Any) -> None:
        """Store each variable under its number, and zeros instead of the secret ones."""
        hidden = {id(variable) for variable in self.secret_variables}
        for number, variable in enumerate(self.variables):
            value = backend.array_of(variable)
            store[str(number)] = np.zeros_like(value) if id(variable) in hidden else value

    def set_weights(self, weights: Any) -> None:
        """Refuse: the ledger is among the variables, and must not be set back.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "The weights of a `DPOptimizer` hold its privacy ledger and cannot be set. Use "
            "`model.save` and `keras.models.load_model`, or `model.load_weights`."
        )

    def _by_id(self, saved: dict[str, Any]) -> dict[int, Any]:
        """Return the saved array of each variable, by the variable's `id`.

        Args:
            saved: The array of each variable by its number.

        Raises:
            ValueError: If number or shapes differ. (Keras itself only warns.)
        """
        found = {name: value.shape for name, value in saved.items()}
        variables = {str(number): variable for number, variable in enumerate(self.variables)}
        expected = {name: tuple(variable.shape) for name, variable in variables.items()}
        if found != expected:
            name = next(name for name in expected | found if found.get(name) != expected.get(name))
            raise ValueError(
                f"The saved state of {self.name!r} does not fit: it holds {len(found)} variables, "
                f"this optimizer has {len(expected)}, and variable {name} has shape "
                f"{expected.get(name)}, the saved one {found.get(name)}. Clipping norm and privacy "
                "ledger cannot be restored from it: build the model and compile it as it was when "
                "it was saved."
            )
        return {id(variable): saved[name] for name, variable in variables.items()}

    def _refuse_plain_model(self) -> None:
        """Raise if no private model was compiled with this optimizer."""
        if self._model is None:
            raise ValueError(self._plain_model_message)

    @abc.abstractmethod
    def _build_state(self, variables: Sequence[keras.Variable]) -> None:
        """Create the optimizer's own variables."""

    def _add_own_variable(self, name: str, value: np.ndarray) -> keras.Variable:
        """Create a variable with an initial array, and list it among the own variables."""
        variable = self.add_variable(
            value.shape,
            initializer="zeros",
            dtype=str(value.dtype),
            # All replicas assign the same value.
            aggregation="only_first_replica",
            name=name,
        )
        variable.assign(value)
        self.own_variables.append(variable)
        return variable


def check_plain_optimizer(
    name: str, optimizer: Any, forbidden: dict[str, str] = FORBIDDEN_OPTIONS
) -> keras.optimizers.Optimizer:
    """Return an optimizer as an instance that neither scales its loss nor is private itself.

    Args:
        name: Name of the argument, for the message.
        optimizer: A Keras optimizer, its name or its config.
        forbidden: Options that must not be set, with the effect of each.

    Raises:
        ValueError: If it is not plain, or has a forbidden option.
    """
    if isinstance(optimizer, dict):
        # Keras's function for optimizers reads configs from other backends too, and changes them.
        optimizer = keras.optimizers.deserialize({**optimizer})
    optimizer = keras.optimizers.get(optimizer)
    if optimizer is None:
        raise ValueError(
            f"Argument `{name}` must be a Keras optimizer, its name or its config. Received: None"
        )
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if is_scaling or hasattr(optimizer, "noise_multiplier"):
        raise ValueError(
            f"Argument `{name}` must be a plain Keras optimizer, neither a loss-scaling nor a "
            f"private one. Received: {name}={optimizer}"
        )
    for option, consequence in forbidden.items():
        value = getattr(optimizer, option, None)
        if value is not None and value is not False:
            raise ValueError(
                f"Argument `{name}` must not have `{option}`: it {consequence}. "
                f"Received: {option}={value}"
            )
    return optimizer


def refuse_legacy_file() -> None:
    """Raise if Keras asks for a config to write an HDF5 file of a whole model.

    Raises:
        ValueError: With the file formats to use instead.
    """
    if keras_private.uses_legacy_config():
        raise ValueError(NO_LEGACY_FILE)
