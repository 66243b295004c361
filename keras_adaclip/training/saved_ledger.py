"""The ledger in the files of a private model."""

import weakref
from typing import Any

from keras_adaclip.accounting import FACTS_KEY, facts_to_array
from keras_adaclip.backend import keras_private


class SavedLedger(keras_private.KerasSaveable):
    """The ledger of a model, as a part that Keras saves and loads in a group of its own.

    Keras finds the part among the attributes of the model. A plain Keras model has no such
    attribute and passes over the group, so that it loads the weights of a private model.

    The part refers to the model weakly: Keras follows the attributes of a part too, and would come
    back to the model.

    Args:
        model: The private model.
    """

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)

    def _obj_type(self) -> str:
        """Return the kind of parts whose attributes Keras passes over."""
        return "Operation"

    def save_own_variables(self, store: Any) -> None:
        """Write the ledger into the file, and the facts for reports by those who have it alone."""
        model: Any = self._model()
        for key, value in model._privacy_state().items():
            store[key] = value
        store[FACTS_KEY] = facts_to_array(model._facts())

    def load_own_variables(self, store: Any) -> None:
        """Include the ledger of the file; a file of a plain model has none."""
        model: Any = self._model()
        model._load_saved_ledger(store)
        model._private_state.loading.is_done = True
