"""A search for hyperparameters whose own cost is counted (Papernot and Steinke 2022).

    e(a) = max_h e_h(a)

bounds the Rényi divergence of a run at order a, where e_h belongs to a run with the hyperparameters
h. Every value of h that the plan of a run depends on is planned before the search.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras_tuner
from keras_tuner.engine import hyperparameters as kinds

from keras_adaclip import accounting
from keras_adaclip._checks import check_between_0_and_1, check_integer, optional
from keras_adaclip._configurable import printed
from keras_adaclip.tuners import private_runs

_MAX_PLANS = 10_000
# Why a search in one of these states releases nothing.
_UNRELEASED = {
    private_runs.NOT_BEGUN: (
        "Nothing is released before the search has ended: its epsilon does not cover results of a "
        "part of the runs. Call `search`."
    ),
    private_runs.UNFINISHED: (
        "The search was interrupted, or is still under way. Nothing is released before a search "
        "has ended, and an interrupted one cannot go on, since that could depend on its runs. "
        "Begin another search in another project, and count the cost of both."
    ),
    private_runs.FAILED: (
        "The best run failed, so all of them did: nothing is released. Errors may depend on the "
        "data and are not told. Train one model of the hypermodel on made-up data."
    ),
}


@dataclasses.dataclass(frozen=True)
class SearchSpent(accounting.PrivacySpent):
    """The privacy of what a search releases; `str()` of it is a statement in words.

    Epsilon is that of the released run with its selection, by Rényi divergences. Steps are those
    of the longest run that can be drawn.

    Args:
        epsilon_of_one_run: Epsilon of a run without a selection, by the same accountant.
    """

    epsilon_of_one_run: float = 0.0


class PrivateSearch(keras_tuner.Tuner):
    """Searches for hyperparameters at random, and releases the best run with its true epsilon.

    The number of runs is drawn at random and kept secret, hyperparameters are drawn at random, and
    only the best run is released. Its epsilon is that of two or three runs, however many there
    were.

    The cost of a run must be known before the first one: the hypermodel has a method
    `privacy_plan(hp)`, which returns the `Ledger` of a whole run, or `base` is given. If plans
    differ, the largest Rényi divergence at every order counts.

    Args:
        hypermodel: A keras-tuner hypermodel that builds compiled private models; with
            `privacy_plan(hp)`, and for `target_epsilon` with
            `with_noise_multiplier(noise_multiplier)`, which returns such a hypermodel with that
            noise.
        objective: The score to choose by: a name that begins with `"val_"`, or a
            `keras_tuner.Objective` with such a name.
        mean_trials: A float above 1, the mean of the number of runs.
        distribution: The distribution of that number: `"geometric"`, `"logarithmic"` or
            `"poisson"`. The last one can draw zero, and then nothing is released.
        base: A `Ledger` or a `LedgerRow` that no run exceeds, instead of `privacy_plan`. For an
            optimizer with a `target_epsilon` of its own: the `privacy_ledger` of one model that has
            trained on made-up data, as many rows in the same `fit`. For `search(...,
            unit_ids=...)`: one with `LedgerRow(..., rows_per_unit=max_rows_per_unit)`.
        target_epsilon: A positive float, epsilon of the whole search, to which the noise of each
            run is calibrated; None leaves the noise to the hypermodel.
        delta: A float in (0, 1), the delta of `target_epsilon`.
        validation_is_public: Whether `validation_data` needs no protection. Otherwise the statement
            of privacy says that the guarantee does not cover it.
        hyperparameters: As in keras-tuner: hyperparameters that `build` does not ask for, or that
            have another range.
        directory: The folder for the files; None for the working directory.
        project_name: The name of this search's folder in it.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, the cost of a run cannot be known, or the folder
            holds another search.

    Guarantees:
        Epsilon holds for what `best_model`, `get_best_hyperparameters`, `best_score` and
        `results_summary` give: the weights, hyperparameters and score of the best run. The number
        of runs must stay secret. Until the search ends, the best weights so far are in the project
        directory, which belongs to the curator; then everything but the best run is deleted.

        Hyperparameters are drawn with replacement from the distribution that the search space
        declares, whatever earlier runs gave. A run that fails, or whose score is not finite, counts
        and loses. Each run begins with `keras.utils.clear_session` and new global seeds. A run that
        continues another one, that has a weight as an earlier run left it, or whose noise or
        batches come from a `seed`, ends the search without a release.

        An interrupted search releases nothing and cannot go on. Another one, in another project,
        costs as much again.

        The released model carries the search's epsilon on its ledger and in its files; so does
        every model when its run has ended. What callbacks and hypermodels print, write or keep
        before that is not covered. The duration of the search tells the number of runs.

    Example:

    >>> import tempfile
    >>> import keras
    >>> import keras_adaclip as ka
    >>> def build(hp):
    ...     model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    ...     rate = hp.Float("learning_rate", 1e-3, 1.0, sampling="log")
    ...     optimizer = ka.optimizers.DPOptimizer(keras.optimizers.SGD(rate), noise_multiplier=1.0)
    ...     model.compile(optimizer, "mean_squared_error")
    ...     return model
    >>> poisson = ka.accounting.Sampling.POISSON
    >>> one_run = ka.accounting.LedgerRow.open(poisson, 256, 60_000, 1.0).advance(3515)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     search = PrivateSearch(
    ...         build, "val_loss", mean_trials=10, base=one_run, directory=folder
    ...     )
    ...     spent = search.privacy_spent(delta=1e-5)
    >>> print(f"{spent.epsilon:.2f}; one run alone {spent.epsilon_of_one_run:.2f}")
    3.17; one run alone 1.56

    Reference:
        Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
    """

    def __init__(
        self,
        hypermodel: Any,
        objective: str | keras_tuner.Objective,
        mean_trials: float = 10,
        distribution: str = "geometric",
        *,
        base: accounting.Ledger | accounting.LedgerRow | None = None,
        target_epsilon: float | None = None,
        delta: float | None = None,
        validation_is_public: bool = False,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        directory: str | os.PathLike[str] | None = None,
        project_name: str | None = None,
    ) -> None:
        name = getattr(objective, "name", objective)
        if not isinstance(name, str) or not name.startswith("val_"):
            raise ValueError(
                "Argument `objective` must be, or name, a score that begins with 'val_': epsilon "
                f"does not cover a choice by training scores. Received: objective={objective!r}"
            )
        self.selection = accounting.RandomSelection(mean_trials, distribution)
        self._delta = optional(check_between_0_and_1, "delta", delta)
        self._validation_is_public = bool(validation_is_public)
        if base is None and not hasattr(hypermodel, "privacy_plan"):
            raise TypeError(
                "The cost of a run must be known before the first one. Give `base`, a ledger that "
                "no run exceeds, or a hypermodel with a method `privacy_plan(hp)` that returns the "
                f"`Ledger` of a whole run. Received: hypermodel={hypermodel!r}"
            )
        if target_epsilon is not None and (delta is None or base is not None):
            raise ValueError(
                "Argument `target_epsilon` needs `delta`, and plans of the hypermodel instead of "
                f"`base`. Received: delta={delta}, base={base!r}"
            )
        super().__init__(
            # The oracle only holds the search space: `PrivateRuns` draws from it.
            keras_tuner.Oracle(objective, hyperparameters=hyperparameters),
            # Any noise will do to find the search space.
            hypermodel if target_epsilon is None else hypermodel.with_noise_multiplier(1.0),
            directory=None if directory is None else os.fspath(directory),
            project_name=project_name,
        )
        self.space = self.oracle.get_space()
        if target_epsilon is not None:
            self.hypermodel = self._calibrated(hypermodel, target_epsilon)
        if isinstance(base, accounting.LedgerRow):
            base = accounting.Ledger((base,))
        self.bounds = (
            _planned_bounds(self.hypermodel, self.space)
            if base is None
            else accounting.RunBounds((base,))
        )
        settings = {
            **dataclasses.asdict(self.selection),
            "objective": [self.oracle.objective.name, self.oracle.objective.direction],
            "base": self.bounds.to_list(),
            "validation_is_public": self._validation_is_public,
        }
        self.record = private_runs.SearchRecord(self.project_dir, settings)

    def __repr__(self) -> str:
        arguments = {"hypermodel": self.hypermodel, "objective": self.oracle.objective.name}
        arguments |= {"delta": self._delta, "validation_is_public": self._validation_is_public}
        return printed(self, {**arguments, **vars(self.selection)})

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Run the search, unless it has ended.

        Whether a search is interrupted must not depend on its runs.

        Args:
            *fit_args: The training data, as in `fit`.
            **fit_kwargs: As in `fit`, with `validation_data`.

        Raises:
            RuntimeError: If nothing can be released, because a run has spent more than planned or
                was not independent of others, or all runs failed; and if a search in the same
                folder was interrupted or is still under way.
            ValueError: If an argument would tell of losing runs, there are no validation data, or
                runs are planned for single rows and `unit_ids` given, or the other way round.
        """
        fit_kwargs = private_runs.checked_fit_arguments(fit_args, fit_kwargs)
        private_runs.refuse_other_unit(fit_args, fit_kwargs, self.bounds.rows_per_unit)
        if self._state()[0] == private_runs.NOT_BEGUN:
            private_runs.PrivateRuns(self, fit_args, fit_kwargs).run()
        self._released()

    # The release and its cost

    def best_model(self) -> Any:
        """Return the released model, which carries the cost of the search on its ledger.

        Returns:
            The model, with the weights of its best epoch; None if zero runs were drawn.

        Raises:
            RuntimeError: If the search has not ended, or nothing can be released.
        """
        if (released := self._released()) is None:
            return None
        (hp,) = self.get_best_hyperparameters()
        model = self.hypermodel.build(hp)
        if not model.built:
            model.build_from_config(released["build_config"])
        # The file holds the optimizer's state as well, which was built when it was saved.
        model.optimizer.build(model.trainable_variables)
        model.load_weights(self.record.best_weights)
        return model

    def get_best_models(self, num_models: int = 1) -> list[Any]:
        """Return the released model in a list, which is empty if nothing is released.

        Args:
            num_models: 1: the best run alone is released.
        """
        check_integer("num_models", num_models, minimum=1, maximum=1)
        model = self.best_model()
        return [] if model is None else [model]

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[keras_tuner.HyperParameters]:
        """Return the released run's hyperparameters in a list, empty if nothing is released.

        Args:
            num_trials: 1: the best run alone is released.
        """
        check_integer("num_trials", num_trials, minimum=1, maximum=1)
        if (released := self._released()) is None:
            return []
        return [keras_tuner.HyperParameters.from_config(released["hyperparameters"])]

    @property
    def best_score(self) -> float | None:
        """The released run's score; None if nothing is released."""
        released = self._released()
        return None if released is None else float(released["score"])

    def privacy_spent(self, delta: float) -> SearchSpent:
        """Return the privacy that the search spends, known before the first run.

        Args:
            delta: A float in (0, 1), well below one over the number of examples.

        """
        self._state()
        cost = self.bounds.selected(self.selection)
        return dataclasses.replace(
            SearchSpent.from_ledger(cost, delta, "rdp"),
            selection=self._selection_in_words(),
            epsilon_of_one_run=self.bounds.epsilon(delta),
        )

    def results_summary(self, num_trials: int = 1, *, delta: float | None = None) -> None:
        """Print what the search has released, and its cost.

        Args:
            num_trials: 1: the best run alone is released.
            delta: The delta of the epsilons; None means that of the constructor, or leaves them
                out.
        """
        check_integer("num_trials", num_trials, minimum=1, maximum=1)
        released = self._released()
        delta = self._delta if delta is None else delta
        print(f"Private search: {self._selection_in_words()}.")
        if delta is not None:
            spent = self.privacy_spent(delta)
            epsilon = accounting.rounded_up(spent.epsilon)
            print(f"epsilon = {epsilon} at delta = {delta:g}, by Rényi divergences")
            print(f"epsilon of one run = {accounting.rounded_up(spent.epsilon_of_one_run)}")
        if released is None:
            print("There was no run, and nothing is released.")
            return
        print(f"{self.oracle.objective.name}: {released['score']:.5g}")
        for name, value in released["hyperparameters"]["values"].items():
            print(f"{name}: {value}")

    def _selection_in_words(self) -> str:
        """Return a statement about the selection and the validation data."""
        text = f"{self.selection}, the number kept secret and nothing else released"
        if self._validation_is_public:
            return f"{text}; validation data are taken to be public"
        return f"{text}; the guarantee does not cover the validation data"

    def _calibrated(self, hypermodel: Any, target_epsilon: float) -> Any:
        """Return the hypermodel with the least noise that keeps the search within the target."""

        def epsilon(noise_multiplier: float) -> float:
            """Return epsilon of the search with a noise multiplier."""
            bounds = _planned_bounds(hypermodel.with_noise_multiplier(noise_multiplier), self.space)
            return bounds.selection_epsilon(self.selection, self._delta or 0.0)

        return hypermodel.with_noise_multiplier(
            accounting.least_noise_multiplier(epsilon, target_epsilon)
        )

    def _state(self) -> tuple[str, Any]:
        """Return the state of the search, and what is released; raise if its cost is not known."""
        state, released = self.record.read()
        if state == private_runs.REFUSED:
            raise RuntimeError(released)
        return state, released

    def _released(self) -> dict[str, Any] | None:
        """Return the released run; None if there was no run."""
        state, released = self._state()
        if state in _UNRELEASED:
            raise RuntimeError(f"{_UNRELEASED[state]} Folder: {self.project_dir}")
        return released


def _planned_bounds(hypermodel: Any, space: keras_tuner.HyperParameters) -> accounting.RunBounds:
    """Return the plans of all runs that can be drawn from a search space, each once.

    `privacy_plan` is called with hyperparameters that have no values at first. When it reads one,
    it is called again with every value of that one.

    Args:
        hypermodel: A hypermodel with a method `privacy_plan(hp)`.
        space: The search space.

    Raises:
        TypeError: If a plan is not a `Ledger`.
        ValueError: If a plan depends on a number without a step, on too many values, or on a
            hyperparameter that the space does not have.
    """
    plans: list[accounting.Ledger] = []
    waiting: list[dict[str, Any]] = [{}]
    while waiting:
        chosen = waiting.pop()
        hp = space.copy()
        hp.values = _ChosenValues(space, chosen)
        try:
            plan = hypermodel.privacy_plan(hp)
        except _ReadBeforeChosenError as error:
            (read,) = error.args
            waiting += [{**chosen, read.name: value} for value in _all_values(read)]
        else:
            if new := private_runs.new_names(hp, space):
                raise ValueError(
                    f"`privacy_plan` of {type(hypermodel).__name__} reads {new}, which the search "
                    "space does not have. Ask for it in `build` or `declare_hyperparameters` too."
                )
            plans.append(plan)
        if len(plans) + len(waiting) > _MAX_PLANS:
            raise ValueError(
                f"`privacy_plan` of {type(hypermodel).__name__} depends on more than "
                f"{_MAX_PLANS:,} combinations of hyperparameters. Let it depend on fewer, or give "
                "`base`, a ledger that no run exceeds."
            )
    return accounting.RunBounds(tuple(plans))


def _all_values(hyperparameter: kinds.HyperParameter) -> list[Any]:
    """Return the values of a hyperparameter, up to one more than the limit."""
    values = hyperparameter.values
    if isinstance(hyperparameter, kinds.Int):
        # keras-tuner lists ten samples of integers without a step.
        every = range(hyperparameter.min_value, hyperparameter.max_value + 1)
        values = every if hyperparameter.step is None else map(int, values)
    elif isinstance(hyperparameter, kinds.Float) and hyperparameter.step is None:
        raise ValueError(
            f"The cost of a run depends on {hyperparameter.name!r}, a number without a step. Give "
            "it a step, make it a `Choice`, or give `base`, a ledger that no run exceeds."
        )
    return list(itertools.islice(values, _MAX_PLANS + 1))


class _ReadBeforeChosenError(BaseException):
    """A plan has read a hyperparameter without a value; no handler of `Exception` keeps this."""


class _ChosenValues(collections.UserDict[str, Any]):
    """Values of the hyperparameters of a space, which raise if one that is not chosen is read.

    Args:
        space: The search space.
        chosen: The values chosen so far, by name.
    """

    def __init__(self, space: keras_tuner.HyperParameters, chosen: dict[str, Any]) -> None:
        self._space = space
        super().__init__(chosen)

    def __getitem__(self, name: str) -> Any:
        for each in self._space.space:
            # A condition reads the values of other hyperparameters, which are chosen first.
            is_new = each.name == name and name not in self.data
            if is_new and all(condition.is_active(self) for condition in each.conditions):
                raise _ReadBeforeChosenError(each)
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return Mapping.__contains__(self, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in {each.name for each in self._space.space} if name in self)
