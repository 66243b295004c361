"""The faults: what a privacy library gets wrong, each as one change of the package's text."""

from typing import NamedTuple

_SOUND = "tests/soundness"


class Fault(NamedTuple):
    """A change that breaks privacy or its accounting.

    Args:
        title: what goes wrong.
        file: in the package.
        old: text that occurs there once.
        new: what stands in its place.
        tests: files or folders, of which at least one test has to fail.
        also: a second text and what stands in its place.
    """

    title: str
    file: str
    old: str
    new: str
    tests: str
    also: tuple[str, str] | None = None


FAULTS = (
    Fault(
        "noise divided by two",
        "optimizers/noise_variables.py",
        "_rounded_up(sum_noise_multiplier * margin)",
        "_rounded_up(sum_noise_multiplier / 2)",
        f"{_SOUND}/test_rules_noise_scale.py",
    ),
    Fault(
        "a third of the noise",
        "optimizers/noise_variables.py",
        "return [total / self.expected_units for total in noised]",
        "return [(a + (b - a) / 3) / self.expected_units for a, b in zip(sums, noised)]",
        f"{_SOUND}/test_rules_noise_scale.py",
    ),
    Fault(
        "noise of one group's norm instead of the joint one",
        "noise.py",
        "joint = ops.sqrt(ops.sum(ops.square(clip_norms)))",
        "joint = ops.max(clip_norms)",
        f"{_SOUND}/test_rules_noise_scale.py",
    ),
    Fault(
        "the same noise in every step",
        "optimizers/noise_variables.py",
        "self._num_draws.assign(self._num_draws.value + 1)",
        "self._num_draws.assign(self._num_draws.value)",
        f"{_SOUND}/test_rules_noise_keys.py",
    ),
    Fault(
        "the same key in every run",
        "noise.py",
        "return np.array(backend.gathered(np.frombuffer(os.urandom(8), np.int32))[0])",
        "return np.array([3, 5], np.int32)",
        f"{_SOUND}/test_rules_noise_keys.py",
    ),
    Fault(
        "a loaded run repeats its noise",
        "optimizers/dp_optimizer.py",
        "            self._noise.renew_key()\n",
        "",
        f"{_SOUND}/test_rules_ledger.py {_SOUND}/test_rules_noise_keys.py",
    ),
    Fault(
        "the noise key is saved with the model",
        "optimizers/dp_optimizer.py",
        "secret = [self._noise.key] if self.built else []",
        "secret = []",
        f"{_SOUND}/test_rules_noise_keys.py",
    ),
    Fault(
        "no noise on the counts",
        "optimizers/noise_variables.py",
        "        return noised\n\n    @property",
        "        return statistics\n\n    @property",
        f"{_SOUND}/test_rules_noise_scale.py tests/clipping",
    ),
    Fault(
        "the counts are not paid for",
        "clipping/paid_statistics.py",
        "of_sum = float((noise_multiplier**-2 - num_statistics * (2.0 * stddev) ** -2) ** -0.5)",
        "of_sum = float(noise_multiplier)",
        "tests/clipping",
    ),
    Fault(
        "the bits inverted",
        "clipping/quantile.py",
        "return ops.where(unclipped, 0.5, -0.5)",
        "return ops.where(unclipped, -0.5, 0.5)",
        f"{_SOUND}/test_rules_clip_norm.py tests/clipping",
    ),
    Fault(
        "the threshold updated before the noise",
        "optimizers/dp_optimizer.py",
        "        clipping = self._clip.current\n        stddevs",
        "        self._clip.update(\n"
        "            Release([], [], grads.statistics, self._noise.expected_units, 1)\n"
        "        )\n"
        "        clipping = self._clip.current\n        stddevs",
        f"{_SOUND}/test_rules_clip_norm.py",
    ),
    Fault(
        "contributions are not clipped",
        "clipping/current.py",
        "return ops.where(counted, factors, 0.0)",
        "return ops.where(counted, ops.ones_like(factors), 0.0)",
        "tests/clipping",
    ),
    Fault(
        "each group clipped to the whole norm",
        "clipping/joint_norm.py",
        "share = clip_norm / groups.num_groups**0.5",
        "share = clip_norm",
        "tests/clipping",
    ),
    Fault(
        "not-a-number contributions added",
        "gradients/clipped_sum.py",
        "return ops.where(finite[:, None], norms, 0.0), finite",
        "return norms, batch.present",
        "tests/gradients/test_not_finite.py",
    ),
    Fault(
        "the mask ignored",
        "gradients/batch.py",
        'return ops.ones((self.num_rows,), dtype="bool") if self.mask is None else self.mask',
        'return ops.ones((self.num_rows,), dtype="bool")',
        f"{_SOUND}/test_rules_masks.py",
    ),
    Fault(
        "divided by the drawn number of examples",
        "models/step.py",
        "    total, logs = _accumulate(model, batch)\n",
        "    total, logs = _accumulate(model, batch)\n"
        "    drawn = ops.maximum(ops.sum(ops.cast(batch.present, 'float32')), 1.0)\n"
        "    share = model.optimizer._noise.expected_units / drawn\n"
        "    total.gradients[:] = [share * each for each in total.gradients]\n",
        f"{_SOUND}/test_rules_steps_and_divisor.py",
    ),
    Fault(
        "examples drawn with twice the probability",
        "sampling/draws.py",
        "size = generator.binomial(num_units, sampling_probability)",
        "size = generator.binomial(num_units, min(1.0, 2 * sampling_probability))",
        "tests/test_sampling.py",
    ),
    Fault(
        "batches of one size instead of Poisson samples",
        "sampling/draws.py",
        "size = generator.binomial(num_units, sampling_probability)",
        "size = round(num_units * sampling_probability)",
        "tests/test_sampling.py",
    ),
    Fault(
        "rows that are not present drawn",
        "sampling/poisson_dataset.py",
        "return rows if self._present is None else rows[self._present[rows]]",
        "return rows",
        "tests/test_sampling.py tests/audit/test_canaries.py",
    ),
    Fault(
        "the same rows drawn in every fit",
        "models/preparation.py",
        "return None if seed is None else seed + (self.privacy_ledger.steps << 32)",
        "return 0 if seed is None else seed",
        f"{_SOUND}/test_rules_noise_keys.py",
    ),
    Fault(
        "shuffled batches accounted as Poisson samples",
        "models/training_data.py",
        "            Sampling.SHUFFLE,\n",
        "            Sampling.POISSON,\n",
        "tests/models/test_sampling_in_fit.py",
    ),
    Fault(
        "a step counted after it is applied, not before",
        "optimizers/dp_optimizer.py",
        "        self._ledger.count_step()\n",
        "",
        f"{_SOUND}/test_rules_around_fit.py",
        (
            "        self.inner_optimizer.apply(gradients, trainable_variables)\n",
            "        self.inner_optimizer.apply(gradients, trainable_variables)\n"
            "        self._ledger.count_step()\n",
        ),
    ),
    Fault(
        "the ledger forgets what is loaded",
        "optimizers/dp_optimizer.py",
        "            self._ledger.include(loaded)\n",
        "",
        f"{_SOUND}/test_rules_ledger.py tests/models/test_saving.py",
    ),
    Fault(
        "compiling again begins a new ledger",
        "models/preparation.py",
        "            optimizer.include_run(self._run)\n",
        "            pass\n",
        f"{_SOUND}/test_rules_ledger.py",
    ),
    Fault(
        "the accountant told of twice the noise",
        "accounting/events.py",
        "    return GaussianDpEvent(noise_multiplier)\n",
        "    return GaussianDpEvent(2 * noise_multiplier)\n",
        "tests/accounting",
    ),
    Fault(
        "plain gradients taken for clipped ones",
        "optimizers/dp_optimizer.py",
        "        if not isinstance(grads, ClippedSum):\n",
        "        if not isinstance(grads, (ClippedSum, list)):\n",
        f"{_SOUND}/test_rules_plain_gradients.py",
    ),
    Fault(
        "layers that mix examples let through",
        "models/preflight.py",
        "    refuse(model, [PrivacyIssue(*parts) for parts in found])\n",
        "",
        "tests/models/test_probe.py tests/models/test_refusals.py",
    ),
    Fault(
        "the noise of fixed-size batches accounted as if a unit were removed, not replaced",
        "accounting/events.py",
        "event = GaussianDpEvent(noise_multiplier / 2)",
        "event = GaussianDpEvent(noise_multiplier)",
        "tests/accounting/test_fixed_size.py",
    ),
    Fault(
        "the best of many runs accounted as one run",
        "accounting/selection.py",
        "return max(alone, epsilon_of_divergences(selected, delta))",
        "return alone",
        "tests/accounting/test_selection.py",
    ),
    Fault(
        "a number of runs that is known accounted as a secret one",
        "tuners/private/search_privacy.py",
        "return self.bounds.epsilon(delta, self.num_known_trials)",
        "return self.bounds.selection_epsilon(self.selection, delta)",
        "tests/tuners/test_private_search_account.py",
    ),
    Fault(
        "losing runs, and how many they were, left on the disk",
        "tuners/private/private_search.py",
        "self._record.remove_trials()",
        "pass",
        "tests/tuners/test_private_search.py",
    ),
    Fault(
        "a run of a search that spends more than was said",
        "tuners/private/search_runs.py",
        "if model is not None and not self._privacy.bounds.covers(model.privacy_ledger):",
        "if False:",
        "tests/tuners/test_private_search_account.py",
    ),
    Fault(
        "what was spent on frozen weights forgotten",
        "models/spending.py",
        "for variable in self.variables  # type: ignore[attr-defined]",
        "for variable in self.trainable_variables  # type: ignore[attr-defined]",
        "tests/federated/test_models.py",
    ),
    Fault(
        "rounds over clients counted as steps over examples",
        "federated/rounds.py",
        "unit=Unit.CLIENT,",
        "unit=Unit.EXAMPLE,",
        "tests/federated/test_models.py",
    ),
    Fault(
        "clients drawn with twice the probability",
        "federated/cohort_batches.py",
        "return poisson_draw(generator, num_clients, self.sampling_probability)",
        "return poisson_draw(generator, num_clients, min(1.0, 2 * self.sampling_probability))",
        "tests/federated/test_cohorts.py",
    ),
    Fault(
        "weights of clients beyond one",
        "gradients/clipped_sum.py",
        "factors = factors * ops.clip(weights, 0.0, 1.0)[:, None]",
        "factors = factors * weights[:, None]",
        "tests/federated/test_privacy.py",
    ),
    Fault(
        "numbers of the first client that left PyTorch repeated for all",
        "backend/torch_recording.py",
        "if watched.are_taken or shapes.are_made:",
        "if shapes.are_made:",
        "tests/backend/test_recording.py",
    ),
    Fault(
        "shuffled epochs over clients counted as one",
        "federated/federated_training.py",
        "is_pass = data.poisson, data.sampling is Sampling.SHUFFLE",
        "is_pass = data.poisson, False",
        "tests/federated/test_privacy.py",
    ),
    Fault(
        "AdaClip takes its centres off the sum of a batch, not off each gradient",
        "gradients/factored/combining.py",
        "return Materialized((part.materialize() - centre) / scale)",
        """written = Materialized((part.materialize() - centre) / scale)
    written.weighted_sum = lambda factors, finite: (
        part.weighted_sum(factors, finite) - ops.sum(factors) * centre
    ) / scale
    return written""",
        "tests/gradients/test_factored.py",
    ),
)
