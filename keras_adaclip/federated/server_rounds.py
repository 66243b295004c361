"""The part of a round that runs where the clients are not: sample, add up, noise, apply, account.

The clients train on nodes, by `NodeTraining`. See `integrations.flower`.
"""

import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
from keras import ops

from keras_adaclip import training
from keras_adaclip._checks import check_integer
from keras_adaclip.accounting import LEDGER_KEY
from keras_adaclip.callbacks import ClippingMonitor, PrivacyCallback
from keras_adaclip.federated.cohorts import round_key, rounds_over
from keras_adaclip.federated.fit import FederatedTraining
from keras_adaclip.gradients import Batch, BatchGradients, ClippedSum, Materialized, Totals
from keras_adaclip.sampling import DrawStream, poisson_draw

_log = logging.getLogger("keras_adaclip")
# Rounding of a sum of float32 numbers.
_TOLERANCE = 1.001
_ENDING, _ROUNDS = ".weights.h5", "keras_adaclip_rounds"


class Drawn(NamedTuple):
    """The clients that a round has drawn.

    Args:
        numbers: Their numbers in the population.
        key: The `round_key`.
    """

    numbers: np.ndarray
    key: int


class NodeSum(NamedTuple):
    """What a node has returned.

    Args:
        sums: The clipped sums, for each trainable weight.
        statistics: The sums of the strategy's statistics.
        num_clients: The number of clients that this node was asked to train.
        node: The name of the node, for the log.
    """

    sums: Sequence[np.ndarray]
    statistics: np.ndarray
    num_clients: int
    node: Any = None


class ServerRounds:
    """Draws the clients of each round, and makes a private step of what their nodes return.

    Args:
        model: A compiled and built `FederatedModel`.
        num_clients: The number of clients on all nodes; it counts as public.
        cohort_size: The expected number of clients in a round, None for that of `fit`.
        callbacks: As for Keras; an epoch is one round.
        checkpoint: Path of a file, ending in `.weights.h5`, to which weights, optimizer and ledger
            are written after each round, before anyone sees the new weights. If it is there, the
            run goes on from it. None writes none.

    Guarantees:
        Those of `FederatedModel.fit` with Poisson sampling. Clients that drop out contribute
        nothing. Each round is on the ledger, and in the checkpoint, before its weights leave the
        server.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the model is not built or not compiled, or an argument is out of range.

    Attributes:
        data: The facts of the rounds.
    """

    def __init__(
        self,
        model: Any,
        num_clients: int,
        cohort_size: int | None = None,
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
        if not isinstance(model, FederatedTraining):
            raise TypeError(
                "Argument `model` must be a `keras_adaclip.FederatedModel`. "
                f"Received: {type(model).__name__}"
            )
        model._require_compiled()
        self.model: Any = model
        num_clients = check_integer("num_clients", num_clients, minimum=1)
        self.data = rounds_over(
            num_clients, model.federated_settings, Batch(None), cohort_size, steps_per_epoch=1
        )
        self._callbacks = training.flattened(callbacks)
        if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in self._callbacks):
            raise ValueError(
                "`BackupAndRestore` cannot restore rounds over nodes. Give `checkpoint` instead."
            )
        for kind in (PrivacyCallback, ClippingMonitor):
            if not any(isinstance(each, kind) for each in self._callbacks):
                self._callbacks.append(kind())
        self._checkpoint = _checked_checkpoint(checkpoint)
        self._running: keras.callbacks.CallbackList | None = None
        self._drawn: Drawn | None = None
        self._written: tuple[int, ...] | None = None
        self._epoch = 0

    @contextlib.contextmanager
    def run(self, num_rounds: int) -> Iterator[int]:
        """Open the ledger for a run, and close it.

        Args:
            num_rounds: The number of rounds, with those that the checkpoint has already.

        Yields:
            The number of rounds that are left.
        """
        model = self.model
        num_rounds = check_integer("num_rounds", num_rounds, minimum=0)
        self._epoch = self._restored()
        left = max(num_rounds - self._epoch, 0)
        if not left:
            yield 0
            return
        with model._run_of_fit(self._callbacks, self.data, False, left, 0) as ordered:
            model.stop_training = False
            self._draws = DrawStream(model.optimizer.sampling_seed)
            self._draws.begin_run(model.privacy_ledger.steps)
            self._running = keras.callbacks.CallbackList(
                ordered,
                add_history=True,
                model=model,
                epochs=self._epoch + left,
                steps=1,
                verbose=1,
            )
            try:
                self._running.on_train_begin()
                yield left
                self._running.on_train_end()
            finally:
                self._running = self._drawn = None

    @property
    def ledger(self) -> dict[str, np.ndarray]:
        """The ledger as arrays, for the nodes' models."""
        return {LEDGER_KEY: np.asarray(self.model._privacy_state()[LEDGER_KEY])}

    def begin_round(self) -> Drawn | None:
        """Draw the clients of a round; None if training has ended, as at a target epsilon."""
        callbacks, model = self._running, self.model
        if callbacks is None:
            raise RuntimeError("Rounds run inside of `ServerRounds.run`, which opens the ledger.")
        self._drawn = None
        if model.stop_training:
            return None
        callbacks.on_epoch_begin(self._epoch)
        callbacks.on_train_batch_begin(0)
        generator = self._draws.next()
        num_clients = self.data.num_examples
        probability = self.data.expected_batch_size / num_clients
        numbers = poisson_draw(generator, num_clients, probability)
        self._drawn = Drawn(numbers, round_key(generator))
        return self._drawn

    def end_round(self, returned: Sequence[NodeSum]) -> dict[str, float]:
        """Add up what the nodes have returned, make a private step of it, and return its logs.

        Args:
            returned: What each node has returned, once for each node. Sums that are not finite, of
                other shapes or longer than the clipping norm allows are left out.

        Returns:
            `epsilon`, and what other callbacks add; `ClippingMonitor` adds `clip_norm`.

        Raises:
            RuntimeError: If no round was begun.
        """
        callbacks, model = self._running, self.model
        if callbacks is None or self._drawn is None:
            raise RuntimeError("Each round is begun by `begin_round`, and ended once.")
        self._drawn = None
        variables, clipping = model.trainable_variables, model.optimizer.current_clipping
        total = Totals.zeros([(clipping.num_statistics,), *(each.shape for each in variables)])
        for each in returned:
            try:
                self._refuse_unsound(each)
            except ValueError as error:
                _log.warning("Node %s is left out of this round: %s", each.node, error)
                continue
            total = total.plus([*map(ops.convert_to_tensor, (each.statistics, *each.sums))])
        scale = model.federated_settings.weighting.scale
        model.optimizer.apply(dataclasses.replace(ClippedSum.of(total), scale=scale), variables)
        # First: a callback may show the weights to others.
        self._save()
        callbacks.on_train_batch_end(0, {})
        callbacks.on_epoch_end(self._epoch, {})
        self._epoch += 1
        return {name: values[-1] for name, values in model.history.history.items()}

    def _refuse_unsound(self, returned: NodeSum) -> None:
        """Raise an error if the sum of a node cannot be one of clipped contributions."""
        model = self.model
        clipping, variables = model.optimizer.current_clipping, model.trainable_variables
        arrays = [*returned.sums, returned.statistics]
        shapes = [*(tuple(variable.shape) for variable in variables), (clipping.num_statistics,)]
        kinds = [(each.shape, str(each.dtype)) for each in arrays]
        if kinds != [(shape, "float32") for shape in shapes]:
            raise ValueError("its arrays are not those of this model and clipping strategy")
        if not all(np.isfinite(each).all() for each in arrays):
            raise ValueError("its sum is not finite")
        bound = clipping.strategy.statistic_bound
        largest = float(np.max(np.abs(returned.statistics), initial=0.0))
        if bound is not None and largest > _TOLERANCE * bound * returned.num_clients:
            raise ValueError(f"a statistic of {largest:.4g} is more than its clients can add")
        parts: list[Any] = [
            Materialized(ops.convert_to_tensor(each[None])) for each in returned.sums
        ]
        squares = BatchGradients(variables, parts, 1).squared_norms(clipping.groups)
        norms = np.sqrt(ops.convert_to_numpy(squares))[0]
        bounds = returned.num_clients * ops.convert_to_numpy(clipping.state["clip_norm"])
        shares = norms / bounds
        if clipping.strategy.statistics_fit_the_norm:
            shares = np.hypot(shares, np.linalg.norm(returned.statistics) / returned.num_clients)
        if np.any(shares > _TOLERANCE):
            raise ValueError(f"its sum of norm {norms.max():.4g} is longer than clipping allows")

    def _restored(self) -> int:
        """Load the checkpoint, if there is one, and return the number of rounds that it has."""
        model = self.model
        if not model.built:
            raise ValueError(
                "The server has no examples that would tell the shapes of the model. Begin it with "
                "a `keras.Input`, or call `build`."
            )
        model.optimizer.build(model.trainable_variables)
        self._written = _state_of(self._checkpoint)
        if self._checkpoint is None or self._written is None:
            return 0
        with h5py.File(self._checkpoint) as file:
            if _ROUNDS not in file.attrs:
                raise ValueError(
                    "The checkpoint was not written by rounds over nodes. Give another path, and "
                    f"load it by `load_weights`. Received: {self._checkpoint}"
                )
            num_rounds = int(file.attrs[_ROUNDS])
        model.load_weights(self._checkpoint)
        return num_rounds

    def _save(self) -> None:
        """Write the checkpoint, in the place of the one before at once."""
        if self._checkpoint is None:
            return
        with tempfile.TemporaryDirectory(dir=self._checkpoint.parent) as folder:
            written = Path(folder, self._checkpoint.name)
            self.model.save_weights(written)
            with h5py.File(written, "r+") as file:
                file.attrs[_ROUNDS] = self._epoch + 1
            with written.open("rb") as file:
                os.fsync(file.fileno())
            if _state_of(self._checkpoint) not in (self._written, None):
                raise RuntimeError(
                    "Something else has written the checkpoint meanwhile, such as another run, "
                    "whose rounds would be lost from the ledger. End one of the two, and give each "
                    f"run a checkpoint of its own. Received: {self._checkpoint}"
                )
            os.replace(written, self._checkpoint)
        with contextlib.suppress(OSError):  # Not every system lets a folder be opened.
            number = os.open(self._checkpoint.parent, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        self._written = _state_of(self._checkpoint)


def _checked_checkpoint(path: Any) -> Path | None:
    """Return the path of a checkpoint.

    Args:
        path: A path, or None.

    Raises:
        ValueError: If the path has another ending than Keras's for weights.
    """
    if path is None:
        return None
    if not str(path).endswith(_ENDING) or not Path(path).absolute().parent.is_dir():
        raise ValueError(
            f"Argument `checkpoint` must be a path that ends in {_ENDING!r}, in a folder that "
            f"exists. Received: checkpoint={str(path)!r}"
        )
    return Path(path).resolve()


def _state_of(path: Path | None) -> tuple[int, ...] | None:
    """Return what tells one state of a file from another; None if there is no file."""
    if path is None or not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
