"""A search space of private training in which every trial spends the same epsilon."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import keras
import keras_tuner

from keras_adaclip import _checks, accounting
from keras_adaclip._configurable import Printable
from keras_adaclip.models import privatize
from keras_adaclip.optimizers import DPOptimizer, check_plain_optimizer
from keras_adaclip.tuners.choices import DEFAULT_STRATEGIES, clipping_choices


class ClippingHyperModel(Printable, keras_tuner.HyperModel):
    """Searches clipping, batch size and learning rate at one epsilon for every trial.

    For `keras_tuner.RandomSearch`, `BayesianOptimization`, `Hyperband`, `GridSearch` and other
    tuners of Keras models. The noise is calibrated for each batch size, once. The
    hyperparameters are `batch_size`, `learning_rate` and those of `clipping_choices`; `build_model`
    can ask for more.

    `search` takes arrays and other arguments of `fit`. Arguments that the trial decides
    (`batch_size`), or that differ from the calibration (`epochs` beyond the planned ones,
    `steps_per_epoch`, `sampling`, another number of rows, `unit_ids` without `max_rows_per_unit`
    here), end the search with an error before it trains.

    Args:
        build_model: A function of the hyperparameters (an argument without default, or named `hp`),
            or of nothing, that returns a new Keras model: a private one, or a Functional or
            Sequential one, which is made private. It must know its input shape.
        num_examples: An int, the number of rows of training data, taken to be public. With
            `max_rows_per_unit`, rows beyond it are left out and do not count.
        epochs: An int from 1, the longest run of one model.
        target_epsilon: A positive float, epsilon of a whole trial; give this and `delta`, or
            `noise_multiplier`.
        delta: A float in (0, 1), well below `1 / num_examples`.
        noise_multiplier: A float from 0, the noise of every trial, if trials need not have the
            same epsilon.
        batch_sizes: The expected batch sizes to choose from. None means 256, 512 and 1024, as far
            as there are twice as many examples, or else a quarter of the examples.
        learning_rates: The learning rates to choose from.
        strategies: The clipping strategies to choose from, as in `clipping_choices`.
        ranges: As in `clipping_choices`.
        optimizer: A Keras optimizer, its name or config; each trial has one like it, with the
            learning rate of the trial.
        loss: As in `compile`.
        metrics: As in `compile`.
        accountant: `"pld"` (tight) or `"rdp"`, for the calibration.
        max_rows_per_unit: An int from 1, the most rows of a person that train, whose epsilon is
            then meant; `search` takes it too, with `unit_ids`, as in `fit`. None protects single
            rows.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or not exactly one of `target_epsilon` and
            `noise_multiplier` is given.

    Guarantees:
        The ledger of a trial's model never exceeds `privacy_plan`, whose epsilon is at most
        `target_epsilon` at `delta`. If `Hyperband` trains a model in several trials, that holds for
        all of them together. A checkpoint that is chosen among the epochs carries the whole run on
        its ledger, since the choice looked at all of it.

        That is the epsilon of one trial, as if it were the only one, and so is the epsilon of a
        model that `get_best_models` gives; its `privacy_report` says that the search is not
        counted. A search looks at many trials, and on private data it costs more: every trial
        counts, and so does each of `executions_per_trial` (composition). For a guarantee of the
        released model use `PrivateSearch`, or search on public data. The validation data that
        trials are compared by is taken to be public.

    Example:

    >>> import keras, keras_tuner
    >>> def build_model():
    ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> hypermodel = ClippingHyperModel(
    ...     build_model,
    ...     num_examples=1000,
    ...     epochs=5,
    ...     target_epsilon=2.0,
    ...     delta=1e-4,
    ...     batch_sizes=(50, 100),
    ...     strategies=("quantile", "power"),
    ...     loss="mse",
    ... )
    >>> hp = keras_tuner.HyperParameters()
    >>> model = hypermodel.build(hp)
    >>> hp.values["batch_size"], hypermodel.privacy_plan(hp).steps
    (50, 100)
    """

    def __init__(
        self,
        build_model: Callable[..., Any],
        *,
        num_examples: int,
        epochs: int,
        target_epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        batch_sizes: Iterable[int] | None = None,
        learning_rates: Iterable[float] = (0.1, 0.3, 1.0),
        strategies: Iterable[str] = DEFAULT_STRATEGIES,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        optimizer: Any = "sgd",
        loss: Any = None,
        metrics: Any = None,
        accountant: str = "pld",
        max_rows_per_unit: int | None = None,
    ) -> None:
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ValueError(
                "Exactly one of the arguments `target_epsilon` and `noise_multiplier` must be "
                f"given. Received: target_epsilon={target_epsilon}, "
                f"noise_multiplier={noise_multiplier}"
            )
        parameters = inspect.signature(build_model).parameters.values()
        self._takes_hp = any(each.default is each.empty or each.name == "hp" for each in parameters)
        self.build_model = build_model
        self.num_examples = _checks.check_integer("num_examples", num_examples, minimum=1)
        self.epochs = _checks.check_integer("epochs", epochs, minimum=1)
        # `calibrate_noise_multiplier` checks these.
        self.target_epsilon: Any = target_epsilon
        self.delta: Any = delta
        self.accountant = accountant
        if noise_multiplier is not None:
            noise_multiplier = _checks.check_noise_multiplier(noise_multiplier)
        self.noise_multiplier = noise_multiplier
        if max_rows_per_unit is not None:
            _checks.check_integer("max_rows_per_unit", max_rows_per_unit, minimum=1)
        self.max_rows_per_unit = max_rows_per_unit
        if batch_sizes is None:
            usual = [size for size in (256, 512, 1024) if 2 * size <= self.num_examples]
            batch_sizes = usual or [math.ceil(self.num_examples / 4)]
        # keras-tuner takes values of one plain type.
        self.batch_sizes = [
            _checks.check_batch_size(size, self.num_examples, "batch_sizes") for size in batch_sizes
        ]
        self.learning_rates = [
            _checks.check_positive("learning_rates", rate) for rate in learning_rates
        ]
        self.strategies = tuple(strategies)
        self.ranges = ranges
        self.optimizer = check_plain_optimizer("optimizer", optimizer)
        self.loss = loss
        self.metrics = metrics
        self._num_runs = 0
        self._noise_multipliers: dict[int, float] = {}
        super().__init__()

    def build(self, hp: Any) -> Any:
        """Return a compiled private model for the hyperparameters, which are asked for here.

        Args:
            hp: The `keras_tuner.HyperParameters` of the trial.

        Raises:
            TypeError: If `build_model` returns a model that cannot be made private.
            FatalValueError: If the model does not know its input shape, or no noise reaches the
                target.
        """
        model = self._private_model(hp)
        batch_size = hp.Choice("batch_size", self.batch_sizes)
        learning_rate = hp.Choice("learning_rate", self.learning_rates)
        noise_multiplier = self._noise_multiplier(batch_size)
        clipping = clipping_choices(
            hp,
            self.strategies,
            ranges=self.ranges,
            total_steps=self.epochs * self._steps_per_epoch(batch_size),
            # Paid statistics need noise of their own above half of the noise multiplier. With the
            # whole of it they add 15% to the noise on the sum.
            statistics_noise_stddev=(
                None if batch_size / 20.0 >= noise_multiplier else noise_multiplier
            ),
        )
        config = {**self.optimizer.get_config(), "learning_rate": learning_rate}
        model.compile(
            optimizer=DPOptimizer(
                type(self.optimizer).from_config(config),
                clipping=clipping,
                noise_multiplier=noise_multiplier,
            ),
            loss=self.loss,
            metrics=keras.tree.map_structure(_new_metric, self.metrics),
        )
        model.tuning = (
            f"not counted: the model is one trial of a search; {self._num_runs} have begun in this "
            "process. Its epsilon is that of one trial; on private data the choice costs up to as "
            "much as all of them together"
        )
        # Otherwise the checkpoint of an earlier trial could not be loaded.
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Train the model of a trial as planned.

        Args:
            hp: The hyperparameters that it was built with.
            model: The model that `build` returned.
            *args: Positional arguments of `search`.
            **kwargs: Named arguments of `search`, and the tuner's callbacks.

        Returns:
            Keras's `History`.

        Raises:
            FatalValueError: If the run would not be the planned one. keras-tuner goes on after
                other errors of a trial.
        """
        arguments = inspect.signature(model.fit).bind(*args, **kwargs).arguments
        defaults = {"batch_size": None, "steps_per_epoch": None, "sampling": "poisson"}
        for name, default in defaults.items():
            if (value := arguments.pop(name, default)) != default:
                raise keras_tuner.errors.FatalValueError(
                    f"Argument `{name}` must be left out: the hypermodel decides it "
                    f"(`batch_sizes`). Received: {name}={value!r}"
                )
        epochs = arguments.setdefault("epochs", self.epochs)
        if epochs > self.epochs:
            raise keras_tuner.errors.FatalValueError(
                f"Argument `epochs` must be at most {self.epochs}, for which the noise was "
                "calibrated: give `ClippingHyperModel(epochs=...)` the longest run (`max_epochs` "
                f"of `Hyperband`). Received: epochs={epochs}"
            )
        ids, most = (arguments.get(name) for name in ("unit_ids", "max_rows_per_unit"))
        planned_most = self.max_rows_per_unit
        if most != planned_most or (ids is None) != (planned_most is None):
            raise keras_tuner.errors.FatalValueError(
                "The noise is calibrated for the `max_rows_per_unit` of `ClippingHyperModel`. "
                "Give `search` the same one and `unit_ids`, or leave all three out. Received: "
                f"unit_ids of type {type(ids).__name__}, max_rows_per_unit={most}, and "
                f"ClippingHyperModel(max_rows_per_unit={planned_most})"
            )
        batch_size = hp.get("batch_size")
        planned, steps_per_epoch = self._planned_row(batch_size), self._steps_per_epoch(batch_size)
        guard = _PlanGuard(planned, steps_per_epoch)
        arguments["callbacks"] = [*(arguments.get("callbacks") or []), guard]
        self._num_runs += 1
        # All epochs decide which of them has the best checkpoint.
        model.pledged_ledger = accounting.Ledger((planned.advance(epochs * steps_per_epoch),))
        if self.target_epsilon is not None:
            model.optimizer.promise(self.delta)
        try:
            return model.fit(**arguments, batch_size=batch_size, sampling="poisson")
        finally:
            model.pledged_ledger = None

    def privacy_plan(self, hp: Any) -> accounting.Ledger:
        """Return the ledger of a trial with these hyperparameters that runs all epochs.

        Args:
            hp: The `keras_tuner.HyperParameters`; `batch_size` has its default if it is missing.

        Returns:
            The ledger; no model is built.
        """
        # Other values are not read: a search asks for the plan of every value that is.
        batch_size = int(hp.values.get("batch_size", self.batch_sizes[0]))
        num_steps = self.epochs * self._steps_per_epoch(batch_size)
        return accounting.Ledger((self._planned_row(batch_size).advance(num_steps),))

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """Return the same search space, with this noise multiplier in every trial.

        Args:
            noise_multiplier: The standard deviation of the noise over the clipping norm.
        """
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        arguments.update(target_epsilon=None, noise_multiplier=noise_multiplier)
        return type(self)(**arguments)

    def _private_model(self, hp: Any) -> Any:
        """Return the model of `build_model`, made private if it is not."""
        model = self.build_model(hp) if self._takes_hp else self.build_model()
        if not hasattr(model, "privacy_ledger"):
            model = privatize(model)
        if not model.built:
            raise keras_tuner.errors.FatalValueError(
                "Argument `build_model` must return a model that knows its input shape: begin it "
                f"with `keras.Input`, or call its `build`. Received: the model {model.name!r}"
            )
        return model

    def _steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of steps of an epoch."""
        return math.ceil(self.num_examples / batch_size)

    def _planned_row(self, batch_size: int) -> accounting.LedgerRow:
        """Return the row of a trial before it has run."""
        noise_multiplier = self._noise_multiplier(batch_size)
        return accounting.LedgerRow(
            accounting.Sampling.POISSON,
            batch_size,
            self.num_examples,
            noise_multiplier,
            rows_per_unit=self.max_rows_per_unit or 0,
        )

    def _noise_multiplier(self, batch_size: int) -> float:
        """Return the noise multiplier of a trial, which is calibrated once for each batch size."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        if batch_size not in self._noise_multipliers:
            try:
                self._noise_multipliers[batch_size] = accounting.calibrate_noise_multiplier(
                    self.target_epsilon,
                    self.delta,
                    self.num_examples,
                    batch_size,
                    epochs=self.epochs,
                    accountant=self.accountant,
                    max_rows_per_unit=self.max_rows_per_unit,
                )
            except ValueError as error:
                raise keras_tuner.errors.FatalValueError(str(error)) from error
        return self._noise_multipliers[batch_size]


class _PlanGuard(keras.callbacks.Callback):
    """Compares the ledger with the plan before each epoch of a trial, and when training ends.

    They differ if trials share weights, if the data have another number of rows, or if another
    callback trains or changes the noise.

    Args:
        planned: The row of a trial before it has run.
        steps_per_epoch: The number of steps of an epoch.
    """

    def __init__(self, planned: accounting.LedgerRow, steps_per_epoch: int) -> None:
        super().__init__()
        self._planned, self._steps_per_epoch = planned, steps_per_epoch
        self._steps_planned = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Raise `FatalValueError` if the steps of this epoch would not be as planned."""
        self._steps_planned = (epoch + 1) * self._steps_per_epoch
        self._check(self.model.privacy_ledger.advance(self._steps_per_epoch))

    def on_train_end(self, logs: Any = None) -> None:
        """Raise `FatalValueError` if more steps ran than were planned."""
        self._check(self.model.privacy_ledger)

    def _check(self, ledger: accounting.Ledger) -> None:
        """Raise `FatalValueError` if a ledger has more than the planned steps."""
        planned = accounting.Ledger((self._planned.advance(self._steps_planned),))
        if not ledger.is_covered_by(planned):
            received, expected = ("; ".join(str(row) for row in rows) for rows in (ledger, planned))
            raise keras_tuner.errors.FatalValueError(
                "This trial would spend more than planned. Give `num_examples` rows, return new "
                "weights from every call of `build_model`, and leave optimizer, noise, batches and "
                f"training to the search. Received: {received}; planned: {expected}"
            )


def _new_metric(metric: Any) -> Any:
    """Return a metric like the given one, for another model; names and functions stay the same."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric
