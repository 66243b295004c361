"""The optimizer that makes a clipped sum private and passes it to any Keras optimizer.

    update = inner optimizer((sum + N(0, (z_D C)^2 I)) / m),  then  C <- next C

with C the clipping norm of this step, m the expected number of units, and z_D the noise multiplier
of the sum: z of the ledger, raised to pay for the clipping strategy's own statistics. With groups
of variables, the noise of each group is that of `noise.group_stddevs`.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip import clipping as clipping_strategies
from keras_adaclip._checks import check_choice, check_integer, check_seed, optional
from keras_adaclip.accounting import LedgerRow
from keras_adaclip.clipping import Clipper, ClippingStrategy, ParameterGroups, Release
from keras_adaclip.gradients import ClippedSum
from keras_adaclip.optimizers.budgeted_optimizer import BudgetedOptimizer
from keras_adaclip.optimizers.state import ClipState, NoiseState

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_adaclip")
class DPOptimizer(BudgetedOptimizer):
    """Wraps a Keras optimizer so that its updates are differentially private.

    Use it with `PrivateModel`, whose training step clips and sums the gradients of single
    examples. In a plain `keras.Model` it raises when it is built, because gradients are not
    clipped there.

    Args:
        optimizer: Any Keras optimizer: an instance, its name, or its config.
        clipping: A strategy from `keras_adaclip.clipping`, a positive number (a fixed norm), a
            schedule of norms, `"quantile"` or `"automatic"`.
        noise_multiplier: Float >= 0, the standard deviation of the noise in units of the
            clipping norm, as the accountant sees it; the cost of the strategy's own statistics is
            included. 0 means no privacy, and epsilon is then infinite. A schedule from
            `keras_adaclip.schedules` is evaluated at the first step of each epoch and holds for
            the whole epoch; each epoch is accounted with its own value.
        target_epsilon: Positive float, in the place of `noise_multiplier`: `fit` plans the noise
            with which its steps, and all that the model has spent before, end at this epsilon.
        delta: Float in (0, 1), the delta of `target_epsilon`; None takes that of a
            `PrivacyCallback` in the same `fit`, or else `num_examples ** -1.1` (of clients, over
            clients) of the largest data set so far.
        microbatch_size: Number of examples that are processed at a time. None lets the step
            decide, for speed. `"auto"` computes a size that fits `memory_limit` from the model's
            plan. It changes memory and speed, not the result.
        memory_limit: Bytes for the outputs of layers, norms and sums with
            `microbatch_size="auto"`; None means half of the free memory.
        gradient_method: `"auto"` computes the clipped sums layer by layer if that is exact for
            the model, else one example after another; `"layerwise"` raises an error instead of
            the latter. It changes memory and speed, not the result.
        seed: None takes the noise and the random numbers of layers from the operating system. An
            integer makes them repeatable, and anyone who knows it can subtract the noise: it is
            part of the config and so of every saved model.
        name: Name of the optimizer.

    Raises:
        ValueError: If an argument is out of range, not exactly one of `noise_multiplier` and
            `target_epsilon` is given, or the inner optimizer has an option that breaks clipping or
            noise (`clipnorm`, `clipvalue`, `global_clipnorm`, `gradient_accumulation_steps`,
            `loss_scale_factor`).

    Guarantees:
        Each step is one Gaussian mechanism with noise multiplier `noise_multiplier`, for adding
        or removing one unit. The noise is drawn once a step, after all microbatches, from 64
        random bits and a counter, and never repeats. The bits are drawn again for each run of steps
        and after loading; they are never saved, and are replaced when the run ends. Loading never
        lowers the ledger.

    Example:

    >>> import keras
    >>> optimizer = DPOptimizer(keras.optimizers.SGD(0.1), clipping=1.0, noise_multiplier=1.1)
    >>> float(optimizer.clip_norm), optimizer.noise_multiplier
    (1.0, 1.1)

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy", algorithm 1.
    """

    _plain_model_message = (
        "A `DPOptimizer` was given to a model that does not clip the gradients of single examples, "
        "so training would not be private. Wrap the model first: "
        "`model = keras_adaclip.privatize(model)`, or build it as a `keras_adaclip.PrivateModel`, "
        "then compile it with this optimizer. (Over clients: `keras_adaclip.federate`, "
        "`keras_adaclip.FederatedModel`. `keras.models.clone_model` makes a plain model of a "
        "sequential one, but a private one of a `PrivateModel(inputs, outputs)`. Clone before you "
        "compile, and wrap the clone; give `SKLearnClassifier` and `SKLearnRegressor` a function "
        "that builds and compiles the model, or a `PrivateModel`.)"
    )

    def __init__(
        self,
        optimizer: Any,
        clipping: Any = 1.0,
        *,
        noise_multiplier: Any = None,
        target_epsilon: float | None = None,
        delta: float | None = None,
        microbatch_size: int | str | None = None,
        memory_limit: int | None = None,
        gradient_method: str = "auto",
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        if (noise_multiplier is None) == (target_epsilon is None):
            raise ValueError(
                "Give exactly one of `noise_multiplier` and `target_epsilon` (for which `fit` "
                f"plans the noise). Received: {noise_multiplier=}, {target_epsilon=}"
            )
        if delta is not None and target_epsilon is None:
            raise ValueError(
                "Argument `delta` belongs to `target_epsilon`. With `noise_multiplier`, give it to "
                f"a `PrivacyCallback`. Received: {delta=}"
            )
        super().__init__(optimizer, noise_multiplier, target_epsilon, delta, name)
        self._clipping = clipping_strategies.get(clipping)
        is_auto = microbatch_size == "auto"
        self.microbatch_size = "auto" if is_auto else check_microbatch_size(microbatch_size)
        if memory_limit is not None and not is_auto:
            raise ValueError(
                'Argument `memory_limit` belongs to microbatch_size="auto". '
                f"Received: memory_limit={memory_limit!r}, microbatch_size={microbatch_size!r}"
            )
        check_bytes = functools.partial(check_integer, minimum=1, maximum=2**63 - 1)
        self.memory_limit = optional(check_bytes, "memory_limit", memory_limit)
        methods = ("auto", "layerwise")
        self.gradient_method = check_choice("gradient_method", gradient_method, methods)
        self.seed = check_seed(seed)

    @property
    def clipping(self) -> ClippingStrategy:
        """The clipping strategy. It cannot be replaced: a compiled step would not notice."""
        return self._clipping

    def apply(self, grads: Any, trainable_variables: Any = None) -> Release:
        """Count the step, add noise to a clipped sum, apply it and move the clipping norm.

        Args:
            grads: A `ClippedSum` from this package's gradient code, and nothing else.
            trainable_variables: The variables, in the order of the sums; None means those for which
                the optimizer was built.

        Returns:
            What the step has released.

        Raises:
            ValueError: If `grads` are plain gradients.
        """
        self._refuse_plain_model()
        if not isinstance(grads, ClippedSum):
            raise ValueError(
                "`DPOptimizer.apply` takes only the clipped sums that a `PrivateModel` or a "
                "`FederatedModel` makes; plain gradients carry no bound on the contribution of one "
                "example or client. Train with `fit`. "
                f"Received: grads of type {type(grads).__name__}"
            )
        if not self.is_in_a_run:
            raise ValueError(
                "`DPOptimizer.apply` was called before `configure`, so neither the noise nor the "
                "expected number of examples or clients is known. Train with `fit`."
            )
        # First: if the rest is interrupted, the step is on the ledger and its noise is used up.
        self.account.count_step()
        self._noise.begin_draw()
        clipping = self._clip.current
        clip_norms, expected_units = clipping.state["clip_norm"], self._noise.expected_units
        stddevs, lost = self._noise.sum_stddevs(clip_norms), grads.remainders
        means = self._noise.noised_means(grads.gradients, stddevs, lost and lost[1:])
        # Each allocation of the noise is proportional to the norms, and so is that of the means.
        mean_stddevs = self._noise.sum_stddevs(grads.scale * clip_norms / expected_units)
        if grads.scale != 1.0:
            means = [grads.scale * mean for mean in means]
        statistics = grads.statistics
        if clipping.num_statistics > 0:
            statistics = self._noise.noised_statistics(statistics, lost and lost[0])
        gradients = self.clipping.gradients(clipping.state, means)
        if grads.public_gradients is not None:
            pairs = zip(gradients, grads.public_gradients, strict=True)
            gradients = [private + public for private, public in pairs]
        inner = self.inner_optimizer
        if self.plans_steps:
            inner.apply_noised(gradients, mean_stddevs, trainable_variables)
        else:
            inner.apply(backend.shares_of_replica(gradients), trainable_variables)
        # Last: this step was clipped and noised with the old clipping norm.
        step = self.iterations.value
        release = Release(means, mean_stddevs, statistics, expected_units, step)
        self._clip.update(release)
        return release

    def begin_plan(self, num_steps: int | None) -> None:
        """Begin the steps of a `fit`.

        Args:
            num_steps: Their number; None if it is not known.

        Raises:
            ValueError: If an inner optimizer that plans its steps has no noise to take them from,
                or no number of steps; or if a callback trains epochs in a `fit` asked for none.
        """
        super().begin_plan(num_steps)
        if not self.plans_steps:
            return
        name = f"`{type(self.inner_optimizer).__name__}`"
        if num_steps is None:
            raise ValueError(
                f"{name} plans its step for all steps of a run, and their number cannot be known "
                "from these data. Give `fit(steps_per_epoch=...)`, or choose another optimizer."
            )
        if self.open_row.noise_multiplier == 0.0:
            raise ValueError(
                f"{name} takes its step from the noise of each gradient, and there is none. Give a "
                "positive `noise_multiplier`, or choose another optimizer. "
                "Received: noise_multiplier=0.0"
            )
        if type(self.clipping).gradients is not ClippingStrategy.gradients:
            raise ValueError(
                f"{name} takes its step from the noise of each gradient, and "
                f"`{type(self.clipping).__name__}` rescales gradients after their noise. Choose "
                "another way to clip, or another optimizer."
            )
        self.inner_optimizer.begin(num_steps)

    # Read-outs

    @property
    def clip_norm(self) -> Any:
        """The clipping norm of the next step, in units of the gradient. A private output.

        A float; with groups an array of shape `(num_groups,)`.
        """
        return self._read("clip_norm")

    @property
    def logged_clip_norm(self) -> Any:
        """The clipping norm to log for the latest step, of shape `(num_groups,)`.

        If a schedule sets the norm, the norm with which that step was clipped; else `clip_norm`.
        Before the first step, `clip_norm`.
        """
        next_norm = self.clip_norm  # raises if it cannot be read now
        if not self.built or self._steps_taken == 0:
            return next_norm
        state, step = self._clip.arrays(), self._steps_taken - 1
        return np.asarray(self.clipping.clip_norm_of_step(state, step))

    @property
    def unclipped_fraction(self) -> Any:
        """The noised share of unclipped units in the latest step; None if none is released."""
        return self._read("unclipped_fraction")

    @property
    def current_clipping(self) -> Clipper:
        """The clipping strategy with its state at this step, for the gradient code."""
        return self._clip.current

    @property
    def clipping_state(self) -> dict[str, np.ndarray]:
        """The state of the clipping strategy at this step, by name. Private outputs."""
        return self._clip.arrays()

    @clipping_state.setter
    def clipping_state(self, state: Mapping[str, np.ndarray]) -> None:
        own = {name: value.shape for name, value in self._clip.arrays().items()}
        given = {name: np.shape(value) for name, value in state.items()}
        if own != given:
            raise ValueError(
                "The state is that of another clipping strategy. Compile both models with the same "
                f"`DPOptimizer`. Expected {own}. Received: {given}"
            )
        self._clip.assign(state)

    @property
    def seed_of_layers(self) -> Tensor:
        """64 random bits, new for each step: the seed of random numbers other than noise."""
        return self._noise.seed_of_layers

    def described(self) -> dict[str, str]:
        """Return how contributions are bounded, and the source of randomness, for a report."""
        clipping = type(self.clipping).__name__
        rows = [row for row in self.ledger if row.steps > 0]
        if rows:
            num_groups = int(np.size(self.clip_norm)) if self.built else 1
            noise_multiplier, size = rows[-1].noise_multiplier, float(rows[-1].expected_batch_size)
            try:
                clipping = self.clipping.describe(noise_multiplier, size, num_groups)
            # The last steps may have run with another strategy. Saving goes on.
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                clipping += f", which cannot describe the last steps: {error}"
        seeds = (
            "noise, sampling and random layers from the operating system, new for each run"
            if self.seed is None
            # Without the seed: reports are published.
            else "noise and random layers from a seed of the user: anyone who knows it can "
            "subtract the noise"
        )
        clipping = "; ".join(filter(None, (clipping, self.plan_in_words)))
        return {"clipping": clipping, "seeds": seeds}

    # Implements `AccountedOptimizer`

    def _build_state(self, variables: Sequence[keras.Variable]) -> None:
        """Create clipping state, noise state and ledger."""
        add = self._add_own_variable
        groups = ParameterGroups.of(self.clipping.groups, variables)
        self._clip = ClipState(add, self.clipping, groups)
        self._noise = NoiseState(add, groups, self.clipping.noise_allocation)
        self._key = self._noise.key
        # A constant clipping norm is the compiled one, not the saved one.
        self._restored_variables = [] if self.clipping.is_constant else self._clip.variables
        self._build_ledger()

    def _noise_split(self, row: LedgerRow) -> tuple[float, float]:
        """Return the strategy's split of the total noise multiplier.

        Raises:
            ValueError: If it does not pay for the contributions and the statistics of one unit.
        """
        total, num_groups = row.noise_multiplier, self._clip.current.num_groups
        split = self.clipping.noise_split(total, float(row.expected_batch_size), num_groups)
        number, bound = self.clipping.num_statistics(num_groups), self.clipping.statistic_bound
        if total == 0.0:
            return split
        if self.clipping.statistics_fit_the_norm:
            is_paid = num_groups == 1 and min(split) >= total
        else:
            # What one unit adds at most to the sum, in clipping norms, and to the statistics.
            sizes = [1.0, math.sqrt(number) * (math.inf if bound is None else bound)]
            pairs = list(zip(sizes, split, strict=True))[: 2 if number else 1]
            shares = [size / noise if noise > 0.0 else math.inf for size, noise in pairs]
            is_paid = math.hypot(*shares) <= (1.0 + 1e-9) / total
        if not (is_paid and math.isfinite(split[0])):
            raise ValueError(
                f"`{type(self.clipping).__name__}.noise_split` does not pay for what the strategy "
                f"releases. With {number} statistics a unit, none above `statistic_bound`, "
                "1 / noise_multiplier**2 must be at least 1 / noise_of_sum**2 + "
                f"{number} * (statistic_bound / noise_of_statistics)**2. Override `noise_split`, "
                "and state `statistic_bound`. "
                f"Received: noise_multiplier={total}, noise_split -> {split}, "
                f"statistic_bound={bound}"
            )
        return split

    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        """Set noise and divisor to those of the row."""
        self._noise.configure(*split, row.expected_batch_size)

    def _begin_schedules(self, step: int, steps_per_epoch: int | None) -> None:
        """Let the clipping strategy begin a run of steps."""
        self._clip.begin_run(step, steps_per_epoch)

    def _read(self, name: str) -> Any:
        """Return an entry of the clipping state; a float if there are no groups."""
        model = self._model and self._model()
        is_flat = self.clipping.groups == "flat"
        if self.built:
            value = self._clip.read(name)
        elif is_flat or (model is not None and model.built):
            variables = () if is_flat or model is None else model.trainable_variables
            groups = ParameterGroups.of(self.clipping.groups, variables)
            value = self.clipping.initial_state(groups).get(name)
        else:
            raise RuntimeError(
                f"`{name}` has one value for each group, and the groups are those of a model's "
                "weights. Compile a model that is built with this optimizer, then read it."
            )
        return float(value[0]) if is_flat and value is not None else value


def check_microbatch_size(value: Any) -> int | None:
    """Return the number of units that are processed at a time, None to let the step decide.

    Args:
        value: An integer from 1, or None.
    """
    return None if value is None else check_integer("microbatch_size", value, minimum=1)
