"""A `DPOptimizer` that plans a run for a privacy budget: noise, batch size, norm and step size.

    noise multiplier:  the least z with  epsilon(ledger + steps of the run; z) <= target epsilon
    batch size:        sqrt(3 n), with n = epochs * examples; at most n / 150
    contributions:     normalized, so that no norm is left to choose; with weights of classes,
                       clipped to the largest of them
    step size:         that of `PlannedMomentum`
    temperature:       of a classifier, from one release that takes 5% of the squared budget

The plan reads public numbers only: examples, epochs, numbers of weights and of kernels, and the
budget. Steps read the released gradients too, and nothing else. No run is spent on tuning.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_adaclip import accounting, backend, noise
from keras_adaclip._checks import check_between_0_and_1, check_integer, check_positive, optional
from keras_adaclip.accounting import LedgerRow, Sampling
from keras_adaclip.clipping import AutomaticClipping, ClippingStrategy, FixedClipping
from keras_adaclip.optimizers.accounted_optimizer import RunSettings
from keras_adaclip.optimizers.dp_optimizer import DPOptimizer
from keras_adaclip.optimizers.planned_momentum import PlannedMomentum

_BATCH_FACTOR, _LEAST_STEPS, _LEAST_BATCH = 3.0, 150, 16
_PARTS = ("batch_size", "calibrate", "clipping", "noise_multiplier", "noise_walk")
# The share of a temperature in the squares of the signal to noise ratios of a run.
_TEMPERATURE_SHARE = 0.05


@keras.saving.register_keras_serializable(package="keras_adaclip")
class AutoDPOptimizer(DPOptimizer):
    """Trains to a privacy budget, with nothing to tune.

    When `fit` begins, it takes the number of examples and of epochs, and plans the batch size
    (unless `fit` is given one), the noise multiplier, the norm of the contributions and the step
    size. `fit` ends at the target epsilon, or before it.

    Normalized contributions make a classifier too sure of itself. So its run ends with one more
    release, from which a temperature is learned: the weights of the last layer are divided by it,
    which changes probabilities and no prediction. This needs Keras's own layers, the last one
    `Dense`, with one label a row, and no weights of rows or classes.

    The plan is for weights that begin at random, for LoRA, and for a new last layer: the noise
    moves each weight by a few times its initial size. Weights that go on with a task for which they
    were trained on public data (a language model, on other texts) need `pretrained=True`: then it
    moves them by a tenth of their size at most.

    Args:
        target_epsilon: Positive float, the budget of everything that this model's training spends.
        delta: Float in (0, 1), of every `fit`; None takes that of a `PrivacyCallback` in the same
            `fit`, or else `num_examples ** -1.1` of the largest data set so far. If a smaller one
            was promised for this model before, the target is held to that.
        optimizer: Any Keras optimizer, whose learning rate is then yours to choose; None for
            `PlannedMomentum`.
        plan: Parts of the plan that you choose yourself: `"batch_size"`, `"calibrate"` (False for
            no temperature), `"clipping"` (as in `DPOptimizer`), `"noise_multiplier"` (which plans
            no temperature either), `"noise_walk"` (of `PlannedMomentum`).
        pretrained: Whether all weights that are trained have been trained before. It changes
            nothing if one of their variables is all zeros, as in new layers and LoRA.
        microbatch_size: As in `DPOptimizer`.
        memory_limit: As in `DPOptimizer`.
        gradient_method: As in `DPOptimizer`.
        seed: As in `DPOptimizer`.
        name: Name of the optimizer.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or `plan` has an unknown part; when `fit`
            begins, if the budget is spent or the number of steps is not known.

    Guarantees:
        Those of `DPOptimizer`, with the noise multiplier of the plan, which each `fit` makes anew
        from the budget that is left. A `fit` uses the whole budget, and a second one needs a larger
        target. `train_on_batch` is refused.

    Example:

    >>> import numpy as np
    >>> import keras
    >>> import keras_adaclip as ka
    >>> model = ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> optimizer = AutoDPOptimizer(target_epsilon=3.0)
    >>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> x, y = np.random.normal(size=(200, 4)), np.random.randint(0, 3, 200)
    >>> history = model.fit(x, y, epochs=2, verbose=0)
    >>> model.privacy_spent(200**-1.1).epsilon <= 3.0
    True

    Reference:
        Bu et al. 2023, "Automatic clipping", for the normalized contributions; Guo et al. 2017,
        "On calibration of modern neural networks", for the temperature.
    """

    target_epsilon: float

    def __init__(
        self,
        target_epsilon: float,
        delta: float | None = None,
        optimizer: Any = None,
        *,
        plan: Mapping[str, Any] | None = None,
        pretrained: bool = False,
        microbatch_size: int | str | None = None,
        memory_limit: int | None = None,
        gradient_method: str = "auto",
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        chosen = _checked_plan(plan, optimizer)
        is_own = optimizer is None
        if is_own:
            optimizer = PlannedMomentum(chosen.get("noise_walk"), pretrained=pretrained)
        elif pretrained:
            raise ValueError(
                "`pretrained` sets the steps of the planned optimizer, and another `optimizer` was "
                "given. Leave one of the two out."
            )
        target_epsilon = check_positive("target_epsilon", target_epsilon)
        noise_multiplier = chosen.get("noise_multiplier")
        super().__init__(
            optimizer,
            chosen.get("clipping", "automatic"),
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon if noise_multiplier is None else None,
            microbatch_size=microbatch_size,
            memory_limit=memory_limit,
            gradient_method=gradient_method,
            seed=seed,
            name=name,
        )
        self._plan = chosen
        self.target_epsilon = target_epsilon
        self.delta = optional(check_between_0_and_1, "delta", delta)
        self._has_own_rule = is_own

    @property
    def learns_temperature(self) -> bool:
        """Whether the run of a classifier ends with the release of a temperature."""
        parts = self._plan.get("calibrate", True), "noise_multiplier" not in self._plan
        return self._has_own_rule and all(parts)

    @property
    def plan(self) -> dict[str, Any]:
        """The parts of the plan that were given."""
        return dict(self._plan)

    def default_batch_size(
        self, num_examples: int, num_epochs: int, steps_per_epoch: int | None
    ) -> int:
        """Return the batch size of the plan.

        Args:
            num_examples: Number of examples.
            num_epochs: Number of epochs of the run.
            steps_per_epoch: Number of steps of an epoch, None for a pass over the data.

        Raises:
            ValueError: If there are several processes, each of which knows its own examples.
        """
        if "batch_size" in self.plan:
            return int(self.plan["batch_size"])
        if backend.num_processes() > 1:
            raise ValueError(
                "Over several processes, `AutoDPOptimizer` does not choose the batch size: each "
                "process knows its own share of the examples. Give `fit(batch_size=...)`."
            )
        if steps_per_epoch is not None:
            steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, minimum=1)
            return math.ceil(num_examples / steps_per_epoch)
        # Steps and their size grow alike with the examples that a run sees.
        num_seen = max(num_epochs, 1) * num_examples
        size = round(min(math.sqrt(_BATCH_FACTOR * num_seen), num_seen / _LEAST_STEPS))
        return min(max(_LEAST_BATCH, size), num_examples)

    def plan_clipping(self, class_weight: Mapping[Any, float] | None) -> bool:
        """Normalize contributions, or clip them to the largest weight of a class.

        Normalized contributions are as large for a light class as for a heavy one. Below a norm of
        about the size of the heaviest, weights count.

        Args:
            class_weight: The weights of the classes, which are public; None without.
        """
        clipping: ClippingStrategy = AutomaticClipping()
        if largest := max((class_weight or {}).values(), default=0.0):
            clipping = FixedClipping(float(largest))
        if "clipping" in self.plan or clipping.get_config() == self.clipping.get_config():
            return False
        self._clipping = clipping
        if self.built:
            self._clip.use(clipping)
        return True

    def _release_after(
        self, settings: RunSettings, past: list[LedgerRow], delta: float
    ) -> LedgerRow:
        """Return the release of a temperature, over all examples of a run, with its noise."""
        whole = dataclasses.replace(
            settings,
            sampling=Sampling.POISSON,
            expected_batch_size=settings.num_examples,
            max_batch_size=0,
        ).row(1.0)

        def epsilon(noise: float) -> float:
            """Return epsilon if this release took all that is left."""
            row = dataclasses.replace(whole, noise_multiplier=noise).advance(1)
            return accounting.quick_epsilon([*past, row], delta, "pld")

        noise = accounting.least_noise_multiplier(epsilon, self.target_epsilon)
        noise /= math.sqrt(_TEMPERATURE_SHARE)
        return dataclasses.replace(whole, noise_multiplier=noise).advance(1)

    def make_last_release(self, sums: np.ndarray, sensitivity: float) -> tuple[np.ndarray, float]:
        """Return sums with the noise of the release that was counted, and its standard deviation.

        Args:
            sums: Float64 array, to which one example adds no more than `sensitivity` to the norm.
            sensitivity: That bound.
        """
        row, self.counted_release = self.counted_release, None
        if row is None:
            raise RuntimeError("No release was counted, or it has been made already.")
        # A callback may have set the variables back to those of an earlier run, key included.
        self._key.assign(noise.fresh_key(self.sampling_seed, self.ledger.steps))
        stddev = row.noise_multiplier * sensitivity
        return self._noise.noised_last(sums, stddev), stddev

    @property
    def plan_in_words(self) -> str:
        """What the optimizer has planned, and what it was given."""
        if not (words := super().plan_in_words):
            return words
        words += f", steps of {type(self.inner_optimizer).__name__}"
        if self.planned_release or self.counted_release:
            words += " and one release for a temperature"
        given = ", ".join(name.replace("_", " ") for name in self.plan)
        return f"{words}, given: {given}" if given else words

    def _arguments(self) -> dict[str, Any]:
        """Return every constructor argument under its own name."""
        arguments, plan = super()._arguments(), self.plan
        if self._has_own_rule:
            arguments["optimizer"] = None
            walk = self.inner_optimizer.get_config()["noise_walk"]
            if walk is not None:  # It may have been set.
                plan["noise_walk"] = walk
            arguments["pretrained"] = self.inner_optimizer.pretrained
        return {**arguments, "plan": plan or None}


def _checked_plan(plan: Any, optimizer: Any) -> dict[str, Any]:
    """Return the parts of the plan that a user has chosen.

    Args:
        plan: The argument.
        optimizer: The optimizer that was given, None for the planned one.

    Raises:
        TypeError: If it is not a dict.
        ValueError: If a part is unknown, out of range, or not used.
    """
    if plan is None:
        return {}
    if not isinstance(plan, Mapping):
        raise TypeError(f"Argument `plan` must be a dict. Received: plan={plan!r}")
    unknown = sorted(map(str, set(plan) - set(_PARTS)))
    if unknown:
        raise ValueError(
            f"Argument `plan` has unknown parts: {', '.join(unknown)}. It may have "
            f"{', '.join(_PARTS)}. Received: plan={plan!r}"
        )
    if "noise_walk" in plan and optimizer is not None:
        raise ValueError(
            "`plan['noise_walk']` sets the step size of the planned optimizer, and another "
            "`optimizer` was given. Leave one of the two out."
        )
    if plan.get("noise_multiplier") == 0:
        raise ValueError(
            "`plan['noise_multiplier']` must be positive: without noise, epsilon is infinite. "
            f"Received: plan={plan!r}"
        )
    if not isinstance(plan.get("calibrate", True), bool):
        raise TypeError(f"`plan['calibrate']` must be a bool. Received: plan={plan!r}")
    if "batch_size" in plan:
        check_integer("plan['batch_size']", plan["batch_size"], minimum=1)
    return dict(plan)
