"""A Keras optimizer around another one, which keeps learning rate, counter and slots."""

from typing import Any

import keras
import numpy as np

from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers.saving import refuse_legacy_file

Tensor = Any


class WrappingOptimizer(keras_private.NoTensorFlowCheckpoint, keras.optimizers.Optimizer):
    """Delegates to an inner optimizer what belongs to it, and keeps variables of its own.

    Args:
        inner_optimizer: the optimizer that applies the updates.
        name: name of the optimizer.
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer, name: str | None) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self._own_variables: list[keras.Variable] = []

    @property
    def variables(self) -> list[keras.Variable]:
        """Threshold, noise state and ledger, then the inner optimizer's variables."""
        return [*self._own_variables, *self.inner_optimizer.variables]

    @property
    def own_variables(self) -> list[keras.Variable]:
        """Threshold, noise state and ledger."""
        return list(self._own_variables)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Delegates to the inner optimizer (moving averages of weights)."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss: scaling it would scale what is clipped."""
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

    def get_config(self) -> dict[str, Any]:
        """The name of the optimizer; subclasses add their arguments.

        Raises:
            ValueError: where Keras asks on behalf of an HDF5 file of the whole model.
        """
        refuse_legacy_file()
        return {"name": self.name}

    def set_weights(self, weights: Any) -> None:
        """Refuses: the ledger is among the variables, and must not be set back.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "The weights of a `DPOptimizer` hold its privacy ledger and cannot be set. Use "
            "`model.save` and `keras.models.load_model`, or `model.load_weights`."
        )

    def _add_own_variable(self, name: str, value: np.ndarray) -> keras.Variable:
        variable = self.add_variable(
            value.shape,
            initializer="zeros",
            dtype=str(value.dtype),
            # All replicas assign the same.
            aggregation="only_first_replica",
            name=name,
        )
        variable.assign(value)
        self._own_variables.append(variable)
        return variable
