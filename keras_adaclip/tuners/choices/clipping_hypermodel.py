"""A search space of private training, every trial of which spends the same epsilon."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

import keras
import keras_tuner

from keras_adaclip.accounting import (
    Ledger,
    check_accountant,
    check_delta,
    check_integer,
    check_target_epsilon,
)
from keras_adaclip.optimizers import DPOptimizer
from keras_adaclip.optimizers.validation import checked_inner_optimizer, checked_noise_multiplier
from keras_adaclip.tuners.choices.hypermodel_arguments import (
    check_goal,
    checked_choices,
    checked_learning_rate,
    checked_noise_schedule,
    fresh_metric,
    private_model,
)
from keras_adaclip.tuners.choices.noise_plans import NoisePlans
from keras_adaclip.tuners.choices.plan_guard import PlanGuard, go_on
from keras_adaclip.tuners.choices.planned_noise import PlannedNoise, calibrated, shape_of
from keras_adaclip.tuners.choices.search_arguments import planned_arguments
from keras_adaclip.tuners.choices.strategy_choices import (
    DEFAULT_STRATEGIES,
    checked_ranges,
    checked_strategies,
    clipping_choices,
)


class ClippingHyperModel(keras_tuner.HyperModel):
    """Searches clipping, noise, batch size and learning rate at one epsilon for every trial.

    For `keras_tuner.RandomSearch`, `BayesianOptimization`, `Hyperband`, `GridSearch` and other
    tuners of Keras models. Batch size and noise schedule change what a noise multiplier is worth,
    so the noise is calibrated for each of their combinations: for all of them in the first trial,
    or one at a time where there are more than eight. The hyperparameters are named `batch_size`,
    `learning_rate`, `noise_schedule` and as in `clipping_choices`; `build_model` may ask for more.

    `search` takes arrays and what else `fit` takes, but what the trial decides (`batch_size`) and
    what the noise was calibrated for (`epochs` beyond the planned ones, `steps_per_epoch`,
    `sampling`, another number of rows) ends the search with an error before it trains.

    Args:
        build_model: function of the hyperparameters (an argument without default, or named `hp`),
            or of nothing, that returns a new Keras model: a private one, or a Functional or
            Sequential one, which is made private. It must know its input shape.
        num_examples: int, the number of rows of training data, taken to be public.
        epochs: int from 1, the longest run of one model.
        target_epsilon: positive float, what a whole trial may spend; give this and `delta`, or
            `noise_multiplier`.
        delta: float in (0, 1), well below `1 / num_examples`.
        noise_multiplier: float >= 0, the noise of every trial's first epoch, where trials are not
            to cost the same.
        batch_sizes: ints, the expected batch sizes to choose from.
        learning_rates: positive floats, the learning rates to choose from.
        strategies: the clipping strategies to choose from, as of `clipping_choices`.
        ranges: as of `clipping_choices`.
        noise_schedules: the shapes of the noise to choose from: `"constant"`, `"linear"` (falls to
            a half, as in Yu et al. 2018), `"exponential"` (likewise), `"growing"` (to the double,
            as in Du et al. 2021). They change once an epoch, twenty times at most.
        optimizer: a Keras optimizer, its name or config; each trial has one like it, with the
            learning rate of the trial.
        loss: as of `compile`.
        metrics: as of `compile`.
        accountant: `"pld"` (tight) or `"rdp"`, for the calibration.
        name: name of the hypermodel.
        tunable: as of `keras_tuner.HyperModel`.

    Raises:
        TypeError: where an argument is of the wrong type.
        ValueError: where an argument is out of range, or not exactly one of `target_epsilon` and
            `noise_multiplier` is given.

    Guarantees:
        The ledger of a trial's model never holds more than `privacy_plan` says, whose epsilon is at
        most `target_epsilon` at `delta`. Of a model that `Hyperband` trains in several trials that
        is what all of them spend together. A checkpoint that is chosen among the epochs carries
        the whole run on its ledger, since all of it was looked at.

        That is the epsilon of one trial, as if it were the only one, and so is the epsilon of a
        model that `get_best_models` gives; its `privacy_report` says that the search is not
        counted. A search looks at many trials, and on private data costs more:
        `executions_per_trial` and every trial count, together (composition). `PrivateSearch` is
        the way to a guarantee for the model that is released.
        Or search on public data. The validation data that trials are compared by is taken to be
        public.

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
        batch_sizes: Iterable[int] = (256, 512, 1024),
        learning_rates: Iterable[float] = (0.1, 0.3, 1.0),
        strategies: Iterable[str] = DEFAULT_STRATEGIES,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        noise_schedules: Iterable[str] = ("constant",),
        optimizer: Any = "sgd",
        loss: Any = None,
        metrics: Any = None,
        accountant: str = "pld",
        name: str | None = None,
        tunable: bool = True,
    ) -> None:
        if not callable(build_model):
            raise TypeError(
                "Argument `build_model` must be a function that returns a Keras model. "
                f"Received: build_model={build_model!r}"
            )
        self.build_model = build_model
        self.num_examples = check_integer(num_examples, "num_examples", minimum=1)
        self.epochs = check_integer(epochs, "epochs", minimum=1)
        check_goal(target_epsilon, delta, noise_multiplier)
        self.target_epsilon = (
            None if target_epsilon is None else check_target_epsilon(target_epsilon)
        )
        self.delta = None if delta is None else check_delta(delta)
        self.noise_multiplier = (
            None if noise_multiplier is None else checked_noise_multiplier(noise_multiplier)
        )
        self.batch_sizes = checked_choices(batch_sizes, "batch_sizes", self._checked_batch_size)
        self.learning_rates = checked_choices(
            learning_rates, "learning_rates", checked_learning_rate
        )
        self.strategies = checked_strategies(strategies)
        checked_ranges(ranges)
        self.ranges = ranges
        self.noise_schedules = checked_choices(
            noise_schedules, "noise_schedules", checked_noise_schedule
        )
        self.optimizer = checked_inner_optimizer(optimizer)
        self.loss = loss
        self.metrics = metrics
        self.accountant = check_accountant(accountant)
        self._num_runs = 0
        self._plans = NoisePlans(self.batch_sizes, self.noise_schedules, self._found_noise)
        super().__init__(name=name, tunable=tunable)

    def build(self, hp: Any) -> Any:
        """A compiled private model for the hyperparameters, which are asked for here.

        Args:
            hp: the `keras_tuner.HyperParameters` of the trial.

        Raises:
            FatalTypeError: where `build_model` returns no model that could be made private.
            FatalValueError: where the model does not know its input shape, or no noise reaches the
                target.
        """
        model = self._private_model(hp)
        trial = self._asked(hp)
        planned = self._plans.of(trial.batch_size, trial.noise_schedule)
        noisiest = max(planned.noise_multipliers)
        clipping = clipping_choices(
            hp,
            self.strategies,
            ranges=self.ranges,
            total_steps=self.epochs * planned.steps_per_epoch,
            # Paid statistics need noise of their own above half of the noise multiplier. With the
            # whole of it they add 15% to the noise on the sum.
            statistics_noise_stddev=None if trial.batch_size / 20.0 >= noisiest else noisiest,
        )
        model.compile(
            optimizer=DPOptimizer(
                self._inner_optimizer(trial.learning_rate),
                clipping=clipping,
                noise_multiplier=planned.for_optimizer(),
            ),
            loss=self.loss,
            metrics=keras.tree.map_structure(fresh_metric, self.metrics),
        )
        model.tuning = (
            f"not counted: the model is one trial of a search, of which {self._num_runs} have "
            "begun in this process. Its epsilon is that of one trial; the choice among them costs "
            "more, on private data up to as much as all of them together"
        )
        # Or the checkpoint of an earlier trial could not be loaded.
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains the model of a trial as planned.

        Args:
            hp: the hyperparameters that it was built with.
            model: what `build` returned.
            *args: what `search` was given by position.
            **kwargs: what it was given by name, and the tuner's callbacks.

        Returns:
            Keras's `History`.

        Raises:
            FatalTypeError: where the data are no arrays.
            FatalValueError: where the run would not be the one that was planned.
        """
        trial = self._asked(hp.copy())
        planned = self._plans.of(trial.batch_size, trial.noise_schedule)
        arguments = planned_arguments(
            model, args, kwargs, num_examples=self.num_examples, epochs=self.epochs
        )
        go_on(model, planned, arguments["initial_epoch"])
        arguments["callbacks"].append(PlanGuard(planned))
        self._num_runs += 1
        # All epochs decide which of them has the best checkpoint.
        model.pledged_ledger = planned.ledger(arguments["epochs"])
        try:
            return model.fit(**arguments, batch_size=trial.batch_size, sampling="poisson")
        finally:
            model.pledged_ledger = None

    def privacy_plan(self, hp: Any) -> Ledger:
        """What one trial with these hyperparameters spends, if it runs all epochs.

        Args:
            hp: the `keras_tuner.HyperParameters`; where `batch_size` or `noise_schedule` are
                missing, their defaults.

        Returns:
            Rows of what will run, no model being built.
        """
        # No more is read than counts: a search may ask for the plan of every value that is read.
        batch_size = hp.values.get("batch_size", self.batch_sizes[0])
        noise_schedule = hp.values.get("noise_schedule", self.noise_schedules[0])
        return self._plans.of(int(batch_size), str(noise_schedule)).ledger()

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same search space, all trials of which begin with this noise multiplier.

        Args:
            noise_multiplier: standard deviation of the noise over the clipping norm.
        """
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        arguments.update(target_epsilon=None, noise_multiplier=noise_multiplier)
        return type(self)(**arguments)

    def _private_model(self, hp: Any) -> Any:
        parameters = inspect.signature(self.build_model).parameters.values()
        takes_hyperparameters = any(p.default is p.empty or p.name == "hp" for p in parameters)
        return private_model(self.build_model(hp) if takes_hyperparameters else self.build_model())

    def _asked(self, hp: Any) -> "_Trial":
        """What the hypermodel itself asks of the hyperparameters, clipping aside."""
        return _Trial(
            int(hp.Choice("batch_size", list(self.batch_sizes))),
            float(hp.Choice("learning_rate", list(self.learning_rates))),
            str(hp.Choice("noise_schedule", list(self.noise_schedules))),
        )

    def _found_noise(self, batch_size: int, noise_schedule: str) -> PlannedNoise:
        if self.target_epsilon is not None and self.delta is not None:
            return calibrated(
                self.target_epsilon,
                self.delta,
                self.num_examples,
                batch_size,
                self.epochs,
                noise_schedule,
                self.accountant,
            )
        first = self.noise_multiplier or 0.0
        noise_multipliers = [first * value for value in shape_of(noise_schedule, self.epochs)]
        return PlannedNoise(tuple(noise_multipliers), batch_size, self.num_examples)

    def _inner_optimizer(self, learning_rate: float) -> Any:
        config = {**self.optimizer.get_config(), "learning_rate": learning_rate}
        return type(self.optimizer).from_config(config)

    def _checked_batch_size(self, value: Any) -> int:
        return check_integer(value, "batch_sizes", minimum=1, maximum=self.num_examples)


class _Trial(NamedTuple):
    batch_size: int
    learning_rate: float
    noise_schedule: str
