"""Saving and loading of a private model: always with its ledger, never with its noise key.

A mixin without a Keras base. It covers every path on which Keras takes state out of a model: files,
pickles and copies, checkpoints of callbacks, state trees.
"""

import contextlib
import functools
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import (
    DIGESTS_KEY,
    FACTS_KEY,
    LEDGER_KEY,
    NO_TUNING,
    STATED_PUBLIC,
    Ledger,
    facts_from_array,
    facts_to_array,
)
from keras_adaclip.backend import keras_private
from keras_adaclip.optimizers import NO_LEGACY_FILE, refuse_legacy_file
from keras_adaclip.training import weights
from keras_adaclip.training.plain_copy import PlainCopy

_STATE_KEYS = (LEDGER_KEY, DIGESTS_KEY)
_SAVED_KEYS = (*_STATE_KEYS, FACTS_KEY)
# Checkpoints of state trees are restored to arrays of the same shape.
_BYTES_IN_TREES = 1 << 17
_NAMES_OF_EARLIER_VERSIONS = ("privacy_ledger_", "ledger_current_row")
_OF_EARLIER_VERSIONS = (
    "The model was saved by version 0.1 or 0.2, whose files this version does not read: load it "
    "with that version, or train it anew."
)


def _refuse_earlier_versions(keys: Iterable[str]) -> None:
    """Raise a `ValueError` if a ledger of an earlier version is among some names."""
    if any(key.startswith(_NAMES_OF_EARLIER_VERSIONS) for key in keys):
        raise ValueError(_OF_EARLIER_VERSIONS)


def _saved_in(part: Any) -> dict[str, Any]:
    """Return what a part of a file says of privacy, nothing if it belongs to a plain model.

    Raises:
        ValueError: If it holds a ledger of an earlier version.
    """
    _refuse_earlier_versions(part.keys())
    return {key: np.asarray(part[key]) for key in _SAVED_KEYS if key in part}


def _without_number(path: str) -> str:
    """Return the path of an optimizer's variable without the optimizer's number."""
    optimizer, *rest = path.split("/")
    return "/".join([re.sub(r"_\d+$", "", optimizer), *rest])


class SavedLedger(keras_private.KerasSaveable):
    """The ledger of a model, as a part that Keras saves in a group of its own.

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
        """Load the ledger again, behind the weights: a class of the user may not have loaded it."""
        model: Any = self._model()
        with model._unknown_if_lost():
            model._take_over(_saved_in(store))


class SavedState(PlainCopy):
    """Saving and loading of a private model with its ledger."""

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the model as a `.keras` file, as Keras does.

        Raises:
            ValueError: If the file is to be HDF5, which would hold the noise key, not the ledger.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(NO_LEGACY_FILE)
        return super().save(filepath, *args, **kwargs)

    @keras_private.as_default_config
    def get_config(self) -> dict[str, Any]:
        """Return the config, as Keras does.

        Raises:
            ValueError: If Keras asks on behalf of an HDF5 file of the whole model.
        """
        refuse_legacy_file()
        config: dict[str, Any] = super().get_config()
        return config

    def get_state_tree(self, value_format: str = "backend_tensor") -> dict[str, Any]:
        """Return Keras's state tree, with ledger and facts among the non-trainable variables.

        The noise key is left out, and so are the metrics: they hold sums over training rows without
        noise.

        Args:
            value_format: `"backend_tensor"` or `"numpy_array"`, as for Keras.
        """
        tree: dict[str, Any] = super().get_state_tree(value_format)
        for variable in getattr(getattr(self, "optimizer", None), "secret_variables", ()):
            *folders, name = variable.path.split("/")
            del functools.reduce(dict.__getitem__, folders, tree["optimizer_variables"])[name]
        tree["metrics_variables"] = {}
        # Orbax takes no arrays without numbers.
        state = {key: value for key, value in self._privacy_state().items() if value.size}
        state[LEDGER_KEY] = Ledger.from_array(state[LEDGER_KEY]).to_array(_BYTES_IN_TREES)
        state[FACTS_KEY] = facts_to_array(self._facts(), _BYTES_IN_TREES)
        if value_format == "backend_tensor":
            state = {key: keras.ops.convert_to_tensor(value) for key, value in state.items()}
        tree["non_trainable_variables"].update(state)
        # Weights of a tree may come with the state of the optimizer alone.
        tree.setdefault("optimizer_variables", {})[LEDGER_KEY] = state[LEDGER_KEY]
        return tree

    def set_state_tree(self, state_tree: dict[str, Any]) -> None:
        """Set the state as Keras does; the ledger is raised to cover that of the tree.

        Args:
            state_tree: The state tree of this model or another, or a part of it.

        Raises:
            ValueError: If the tree's ledger is impossible, or its optimizer state belongs to
                another optimizer. (Keras itself skips unknown variables.)
        """
        tree = dict(state_tree)
        of_optimizer = dict(tree.pop("optimizer_variables", {}))
        frozen = dict(tree.get("non_trainable_variables", {}))
        of_optimizer_too = (path[-1] for path, _ in keras.tree.flatten_with_path(of_optimizer))
        _refuse_earlier_versions([*frozen, *map(str, of_optimizer_too)])
        state = {key: frozen.pop(key) for key in _SAVED_KEYS if key in frozen}
        if "non_trainable_variables" in tree:
            tree["non_trainable_variables"] = frozen
        ledger = of_optimizer.pop(LEDGER_KEY, None)
        if ledger is not None:
            self._load_privacy_state({LEDGER_KEY: ledger}, has_weights=False)
        self._take_over(state, has_weights="trainable_variables" in tree)
        has_optimizer = getattr(self, "optimizer", None) is not None
        values = self._values_of_optimizer(of_optimizer) if has_optimizer else {}
        super().set_state_tree(tree)
        if values:
            self.optimizer.set_values(values, self.privacy_ledger)

    def _values_of_optimizer(self, of_optimizer: dict[str, Any]) -> dict[int, Any]:
        """Return the arrays of a state tree, by the `id` of the optimizer's variable.

        Raises:
            ValueError: If the optimizer has no such variable.
        """
        self._build_optimizer()
        variables = self.optimizer.variables
        # Keras numbers optimizers of one kind: the second `SGD` of a process is `sgd_1`.
        numbered = {_without_number(variable.path): id(variable) for variable in variables}
        numbers = numbered | {variable.path: id(variable) for variable in variables}
        values = {}
        for parts, value in keras.tree.flatten_with_path(of_optimizer):
            path = "/".join(map(str, parts))
            number = numbers.get(path, numbers.get(_without_number(path)))
            if number is None:
                raise ValueError(
                    f"The state tree holds variable {path!r} of an optimizer, which the optimizer "
                    f"{self.optimizer.name!r} of this model does not have, so that its state "
                    "cannot be restored. Compile the model as it was when the tree was taken, with "
                    "optimizers of the same names, or leave 'optimizer_variables' out. The "
                    "privacy ledger of the tree was included."
                )
            values[number] = keras.ops.convert_to_numpy(value)
        return values

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> Any:
        """Load weights as Keras does; the ledger is raised to cover that of the file.

        This holds for weights that are skipped too.

        Args:
            filepath: As for Keras.
            skip_mismatch: As for Keras.
            **kwargs: As for Keras.
        """
        if not (skip_mismatch or kwargs):
            return super().load_weights(filepath)
        with weights.loading_some(self.weights):
            return super().load_weights(filepath, skip_mismatch, **kwargs)

    @property
    def ledger_in_files(self) -> SavedLedger:
        """The ledger as Keras saves it: always the same object, to be visited once.

        Keras skips attributes that raise.
        """
        state = self._private_state
        if state.saved_ledger is None:
            state.saved_ledger = SavedLedger(self)
        return state.saved_ledger

    def save_own_variables(self, store: Any) -> None:
        """Save the model's own weights; Keras saves `ledger_in_files` after them.

        Raises:
            TypeError: If the class of the user has another attribute of that name.
        """
        if type(self).ledger_in_files is not SavedState.ledger_in_files:
            raise TypeError(
                "The attribute `ledger_in_files` of a private model is the ledger in its files, "
                "which would be lost. Give yours another name. Received: ledger_in_files="
                f"{type(self).ledger_in_files!r} of class {type(self).__name__}"
            )
        super().save_own_variables(store)
        self._build_optimizer()

    def load_own_variables(self, store: Any) -> None:
        """Load the ledger, then the model's own weights; the ledger is never lowered.

        Keras loads those of the layers behind them. If the ledger cannot be read, Keras may go on:
        the weights are then those of an unknown ledger, for good.

        Raises:
            ValueError: If there is a ledger that cannot be read.
        """
        with self._unknown_if_lost():
            self._take_over(self._ledger_at(store))
        super().load_own_variables(store)
        self._build_optimizer()

    @contextlib.contextmanager
    def _unknown_if_lost(self) -> Iterator[None]:
        """Let the weights remember for good if their ledger cannot be read."""
        try:
            yield
        except Exception as error:  # Keras goes on after any.
            self._lose_ledger(str(error))
            raise

    def _ledger_at(self, store: Any) -> dict[str, Any]:
        """Return the part of a file that holds the ledger of this model, whose place is given."""
        if isinstance(store, Mapping):
            raise ValueError("it can be read from HDF5 files (`.keras`, `.weights.h5`) alone")
        _refuse_earlier_versions(store.keys())
        place = keras_private.place_of(store)
        part = store.get(f"{place}/ledger_in_files" if place else "ledger_in_files")
        found = _saved_in(part)
        store.get(place)
        return found

    def _take_over(self, state: dict[str, Any], has_weights: bool = True) -> None:
        """Include a saved ledger and what else is beside it, if anything is.

        Args:
            state: The arrays under `_SAVED_KEYS`.
            has_weights: Whether the weights come with it.
        """
        facts = state.pop(FACTS_KEY, None)
        known = {} if facts is None else facts_from_array(keras.ops.convert_to_numpy(facts))
        tuning = known.get("tuning", NO_TUNING)
        self.public_preprocessing |= known.get("preprocessing") == STATED_PUBLIC
        weights.note_public_changes(self.weights, known.get("public_changes", ""))
        self._load_privacy_state(state, has_weights)
        if self.tuning == NO_TUNING:
            self.tuning = tuning
        # A tuner that loads a trial has counted more trials since than the file tells.
        elif tuning != NO_TUNING and tuning.partition(";")[0] not in self.tuning:
            self.tuning += f"; {tuning}"

    def _build_optimizer(self) -> None:
        """Make the optimizer's variables, which Keras saves and loads after the model's own."""
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and self.built:
            optimizer.build(self.trainable_variables)

    def _privacy_state(self) -> dict[str, Any]:
        """Return the arrays that are saved under `_STATE_KEYS`."""
        ledger = self.privacy_ledger
        if self.pledged_ledger is not None:
            ledger = ledger.raised_to(self.pledged_ledger)
        return {LEDGER_KEY: ledger.to_array(), DIGESTS_KEY: weights.to_array(self)}

    def _load_privacy_state(self, state: Mapping[str, Any], has_weights: bool = True) -> None:
        """Include what was saved under `_STATE_KEYS`, if anything was.

        Args:
            state: The result of `_privacy_state`.
            has_weights: Whether the weights come with it.

        Raises:
            ValueError: If the ledger is incomplete or impossible.
        """
        if not state:
            return
        arrays = {key: keras.ops.convert_to_numpy(value) for key, value in state.items()}
        if LEDGER_KEY not in arrays:
            raise ValueError(
                f"The privacy ledger is damaged: it lacks {LEDGER_KEY!r}. Load another copy of it."
            )
        self._include(Ledger.from_array(arrays[LEDGER_KEY]), self.variables)
        if has_weights:
            weights.from_array(self.weights, arrays.get(DIGESTS_KEY))
