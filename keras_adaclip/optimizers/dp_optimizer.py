"""The optimizer that makes a clipped sum private and hands it to any Keras optimizer.

    update = inner optimizer((sum + N(0, (z_D C)^2 I)) / m),  then  C <- next C

with C the clipping norm of this step, m the expected number of units, and z_D what is left of the
noise multiplier z after the clipping strategy's own statistics are paid for. With groups of
variables, the noise of each is that of `noise.group_stddevs`.
"""

from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip import clipping as clipping_strategies
from keras_adaclip.accounting import LedgerRow
from keras_adaclip.clipping import ClippingStrategy, CurrentClipping, ParameterGroups, Release
from keras_adaclip.gradients import ClippedSum
from keras_adaclip.optimizers.accounted_optimizer import AccountedOptimizer, with_objects
from keras_adaclip.optimizers.clip_variables import ClipVariables
from keras_adaclip.optimizers.noise_variables import NoiseVariables
from keras_adaclip.optimizers.saving import save_arrays, saved_arrays
from keras_adaclip.optimizers.validation import (
    check_split,
    checked_gradient_method,
    checked_inner_optimizer,
    checked_memory_limit,
    checked_microbatch_size,
    checked_seed,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_adaclip")
class DPOptimizer(AccountedOptimizer):
    """Wraps a Keras optimizer so that what it applies is differentially private.

    Use it with `PrivateModel`, whose training step clips and sums the gradients of single
    examples. In a plain `keras.Model` it refuses to be built, because the gradients there are
    sums that nobody has clipped.

    Args:
        optimizer: any Keras optimizer: an instance, its name, or its config.
        clipping: a strategy from `keras_adaclip.clipping`, a positive number (a fixed norm), a
            schedule of norms, `"quantile"` or `"automatic"`.
        noise_multiplier: float >= 0, the standard deviation of the noise in units of the
            clipping norm, what the strategy's own statistics cost included: the number that the
            accountant sees. 0 means no privacy, and epsilon is then infinite. A schedule from
            `keras_adaclip.schedules` is evaluated at the first step of each epoch, for all of
            the epoch, and each epoch is accounted with the number that it ran with.
        microbatch_size: number of examples that are processed at a time. None lets the step
            decide, for speed. `"auto"` tries what fits `memory_limit` before training starts.
            Changes memory and speed, not the result.
        memory_limit: bytes that norms and sums may take with `microbatch_size="auto"`; None
            stands for half of the memory that is free.
        gradient_method: `"auto"` takes the clipped sums layer by layer where that is exact for
            the model, else one example after another; `"layerwise"` raises an error instead of
            the latter. Changes memory and speed, not the result.
        seed: None takes the noise from the operating system. An integer makes it repeatable, and
            whoever knows it can subtract the noise: it stands in the config and so in every
            saved model.
        name: name of the optimizer.

    Raises:
        ValueError: where an argument is out of range, or the inner optimizer has an option that
            breaks clipping or noise (`clipnorm`, `clipvalue`, `global_clipnorm`,
            `gradient_accumulation_steps`, `loss_scale_factor`).

    Guarantees:
        Each step is one Gaussian mechanism with noise multiplier `noise_multiplier`, for adding
        or removing one unit. The noise is drawn once a step, after all microbatches, from 64
        random bits and a counter, and never repeats; the bits are drawn anew for each run of
        steps and after loading. They are never saved, and are gone when the run ends. Loading
        never lowers the ledger.

    Example:

    >>> import keras
    >>> optimizer = DPOptimizer(keras.optimizers.SGD(0.1), clipping=1.0, noise_multiplier=1.1)
    >>> float(optimizer.clip_norm), optimizer.noise_multiplier
    (1.0, 1.1)

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy", algorithm 1.
    """

    def __init__(
        self,
        optimizer: Any,
        clipping: Any = 1.0,
        *,
        noise_multiplier: Any,
        microbatch_size: int | str | None = None,
        memory_limit: int | None = None,
        gradient_method: str = "auto",
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(checked_inner_optimizer(optimizer), noise_multiplier, name)
        self._clipping = clipping_strategies.get(clipping)
        self.microbatch_size = checked_microbatch_size(microbatch_size)
        self.memory_limit = checked_memory_limit(memory_limit, self.microbatch_size)
        self._gradient_method = checked_gradient_method(gradient_method)
        self.seed = checked_seed(seed)

    # Keras's optimizer protocol

    @property
    def gradient_method(self) -> str:
        """Which way the per-example gradients are taken; a change counts from the next `fit` on."""
        return self._gradient_method

    @gradient_method.setter
    def gradient_method(self, value: str) -> None:
        self._gradient_method = checked_gradient_method(value)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the variables of the inner optimizer, the threshold, the noise and the ledger.

        Args:
            variables: the trainable variables.

        Raises:
            ValueError: where no `PrivateModel` was compiled with this optimizer.
        """
        self._refuse_plain_model()
        if self.built:
            return
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        add = self._add_own_variable
        groups = ParameterGroups.of(self.clipping.groups, variables)
        self._clip = ClipVariables(add, self.clipping, groups)
        self._noise = NoiseVariables(add, self.seed, groups, self.clipping.noise_allocation)
        self._build_ledger()
        self._built_for = [id(variable) for variable in variables]
        super().build(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Noises a clipped sum, applies it, moves the threshold and counts the step.

        Args:
            grads: a `ClippedSum` from this package's gradient code, and nothing else.
            trainable_variables: the variables, in the order of the sums; None means those that
                the optimizer was built with.

        Raises:
            ValueError: where `grads` are plain gradients.
        """
        self._refuse_plain_model()
        if not isinstance(grads, ClippedSum):
            raise ValueError(
                "`DPOptimizer.apply` takes only the clipped sums that a `PrivateModel` or a "
                "`FederatedModel` makes; plain gradients carry no bound on what one example or "
                "client contributed. Train with `fit`. "
                f"Received: grads of type {type(grads).__name__}"
            )
        if not self._is_configured:
            raise ValueError(
                "`DPOptimizer.apply` was called before `configure`, so neither the noise nor the "
                "expected number of examples or clients is known. Train with `fit`."
            )
        # First: whatever interrupts the rest, the step is on the ledger and its noise is used up.
        self._ledger.count_step()
        self._noise.begin_draw()
        clipping = self._clip.current
        stddevs = self._noise.sum_stddevs(clipping.state["clip_norm"])
        expected_units = self._noise.expected_units
        means = self._noise.noised_means(grads.gradients, stddevs)
        mean_stddevs = [stddev / expected_units for stddev in stddevs]
        if grads.scale != 1.0:
            means, mean_stddevs = (
                [grads.scale * each for each in part] for part in (means, mean_stddevs)
            )
        statistics = grads.statistics
        if clipping.num_statistics > 0:
            statistics = self._noise.noised_statistics(statistics)
        gradients = self.clipping.gradients(clipping.state, means)
        if grads.public_gradients is not None:
            pairs = zip(gradients, grads.public_gradients, strict=True)
            gradients = [private + public for private, public in pairs]
        with backend.applied_as_they_are(self.inner_optimizer):
            self.inner_optimizer.apply(gradients, trainable_variables)
        # Last: this step was clipped, and noised, with the threshold as it was.
        self._clip.update(
            Release(means, mean_stddevs, statistics, expected_units, self.iterations.value)
        )

    @property
    def clipping(self) -> ClippingStrategy:
        """The clipping strategy. It stays what it is: a compiled step would not see another."""
        return self._clipping

    # What is read out

    @property
    def clip_norm(self) -> Any:
        """The clipping norm of the next step, in units of the gradient. A private output.

        A float; with groups an array of shape `(num_groups,)`.
        """
        return self._read("clip_norm")

    @property
    def logged_clip_norm(self) -> Any:
        """The clipping norm that stands in logs for the latest step, one value a group.

        Where a schedule sets the norm, the one with which that step clipped; else `clip_norm`, as
        the step has left it. Before the first step, `clip_norm`.
        """
        next_norm = self.clip_norm  # says it where it cannot be read now
        if not self.built or self._steps_taken == 0:
            return next_norm
        return self._clip.read_of_step(self._steps_taken - 1)

    @property
    def unclipped_fraction(self) -> Any:
        """The noised share of unclipped units in the latest step; None where none is released."""
        return self._read("unclipped_fraction")

    @property
    def current_clipping(self) -> CurrentClipping:
        """The clipping strategy as it stands at this step, for the gradient code."""
        return self._clip.current

    # What `PrivateModel` calls

    @property
    def augmentation_seed(self) -> Tensor:
        """Two integers, new for each step, for random numbers other than noise."""
        return self._noise.augmentation_seed

    def described(self) -> dict[str, str]:
        """How contributions are bounded and where the noise comes from, for a report."""
        rows = [row for row in self.ledger if row.steps > 0]
        total = rows[-1].noise_multiplier if rows else None
        expected_units = float(rows[-1].expected_batch_size) if rows else None
        num_groups = int(np.size(self.clip_norm)) if self.built else None
        if self.seed is None:
            seeds = "noise and sampling from the operating system, anew for each run"
        else:
            seeds = f"noise seeded with {self.seed}: whoever knows it can subtract the noise"
        return {
            "clipping": self.clipping.describe(total, expected_units, num_groups),
            "seeds": seeds,
        }

    # Saving

    def save_own_variables(self, store: Any) -> None:
        """Stores all variables but the noise key, which would lay the noise bare."""
        save_arrays(store, self.variables, self.secret_variables)

    def load_own_variables(self, store: Any) -> None:
        """Loads threshold, ledger and the inner optimizer's state; never lowers the ledger.

        The noise, the divisor and the row in which steps are counted belong to the run that is
        under way and stay what they are; the noise key is drawn anew. Of a model that was saved
        without an optimizer there is nothing to load.

        Raises:
            ValueError: where the stored variables are not those of this optimizer.
        """
        if store.keys():
            self.set_values(saved_arrays(store, self.variables, self.name))

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        serialize = keras.saving.serialize_keras_object
        return {
            "optimizer": serialize(self.inner_optimizer),
            "clipping": serialize(self.clipping),
            "noise_multiplier": self.noise_multiplier
            if isinstance(self.noise_multiplier, float)
            else serialize(self.noise_multiplier),
            "microbatch_size": self.microbatch_size,
            "memory_limit": self.memory_limit,
            "gradient_method": self.gradient_method,
            "seed": self.seed,
            **super().get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The optimizer that `get_config` describes."""
        return cls(**with_objects(config, ("clipping",), custom_objects))

    def _secret_variables(self) -> list[keras.Variable]:
        return [self._noise.key]

    def _restored_variables(self) -> list[keras.Variable]:
        # A threshold that never moves is the compiled one, not the one that was saved.
        of_clipping = [] if self.clipping.is_constant else self._clip.variables
        return [*of_clipping, *self.inner_optimizer.variables]

    def _renew_secrets(self) -> None:
        self._noise.renew_key()

    def _retire_secrets(self) -> None:
        self._noise.retire_key()

    def _refuse_plain_model(self) -> None:
        if not self._is_for_private_model:
            raise ValueError(
                "A `DPOptimizer` was given to a model that does not clip the gradients of single "
                "examples, so training would not be private. Wrap the model first: "
                "`model = keras_adaclip.privatize(model)`, or build it as a "
                "`keras_adaclip.PrivateModel`, then compile it with this optimizer. (Over clients: "
                "`keras_adaclip.federate`, `keras_adaclip.FederatedModel`. What "
                "`keras.models.clone_model` makes is a plain model: clone before you compile, and "
                "wrap the clone.)"
            )

    def _noise_split(self, row: LedgerRow) -> tuple[float, float]:
        total, num_groups = row.noise_multiplier, self._clip.current.num_groups
        split = self.clipping.noise_split(total, float(row.expected_batch_size), num_groups)
        check_split(self.clipping, total, split, num_groups)
        return split

    def _set_noise(self, row: LedgerRow, split: tuple[float, float]) -> None:
        self._noise.configure(*split, row.expected_batch_size, self.ledger.steps)
        num_groups = self._clip.current.num_groups
        self.clipping.remember_split(row.noise_multiplier, *split, num_groups)

    def _begin_schedules(self, step: int, steps_per_epoch: int | None) -> None:
        self._clip.begin_run(step, steps_per_epoch)

    def _read(self, name: str) -> Any:
        """An entry of the clipping state; a float where there are no groups."""
        model = self._model()
        if self.built:
            value = self._clip.read(name)
        elif self.clipping.groups == "flat":
            value = self.clipping.initial_state(ParameterGroups.single()).get(name)
        elif model is not None and model.built:
            groups = ParameterGroups.of(self.clipping.groups, model.trainable_variables)
            value = self.clipping.initial_state(groups).get(name)
        else:
            raise RuntimeError(
                f"`{name}` has one value a group, and the groups are those of the weights of a "
                "model. Compile a model that is built with this optimizer, then read it."
            )
        if value is None or self.clipping.groups != "flat":
            return value
        return float(value[0])
