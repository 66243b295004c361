"""Rule 22: what is absent abstains, so that sum and statistics together move by what is paid for.

Each step's sum and statistics are divided by the standard deviations of their noise. For two
neighbours the distance of the two vectors is then one over the noise multiplier of the step.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.accounting import Sampling
from keras_adaclip.federated import ByExamples, ClientData, FederatedSequential
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.optimizers import DPOptimizer
from tests.soundness.setups import fix_draws

NUM_UNITS, NUM_ROWS, CHANGED = 7, 5, 3
OTHERS = np.delete(np.arange(NUM_UNITS), CHANGED)
NOISE_MULTIPLIER = 1.3
CLIPPINGS = {
    "quantile": ka.clipping.QuantileClipping(initial_clip_norm=0.3, count_noise_stddev=0.8),
    "quantile, per layer": ka.clipping.QuantileClipping(
        initial_clip_norm=0.3, count_noise_stddev=1.1, update="linear", groups="per_layer"
    ),
    "mean norm": ka.clipping.MeanNormClipping(
        0.3, mean_noise_stddev=1.1, groups="per_layer", noise_allocation="optimal"
    ),
    "AdaClip": ka.clipping.AdaClip(),
    "automatic": ka.clipping.AutomaticClipping(0.3),
    "PSAC": ka.clipping.PSAC(0.3, stabilizer=1e-3),
    "SlaClip": ka.clipping.SlaClip(0.01),
    "expected error": ka.clipping.ExpectedErrorClipping(
        0.3, excess_noise_stddev=1.1, groups="per_layer"
    ),
}
OPTIONS = {
    "all": {},
    "one by one": {"microbatch_size": 1, "client_batch_size": 2, "local_epochs": 2},
    "weighted": {
        "microbatch_size": 2,
        "client_weighting": ByExamples(limit=4, mean=2.0),
        "client_examples_limit": 3,
    },
}


def paired(*kinds):
    """Each clipping strategy with one of three kinds, and the first strategy with two."""
    return list(zip(["quantile", *CLIPPINGS], itertools.cycle(kinds), strict=False))


class Recorder(keras.optimizers.SGD):
    """Keeps what the steps add up to, in units of their noise, in a variable."""

    def __init__(self, num_steps=1):
        super().__init__()
        self.num_steps = num_steps

    def build(self, variables):
        super().build(variables)
        # And two statistics at most.
        size = 2 + sum(np.prod(variable.shape, dtype=int) for variable in variables)
        self.step = self.add_variable((), "zeros", "int32", name="step")
        self.seen = self.add_variable((self.num_steps, size), "zeros", name="seen")

    def record(self, vector):
        is_now = ops.equal(ops.arange(self.num_steps), self.step.value)
        self.seen.assign(self.seen + ops.where(is_now[:, None], vector[None], 0.0))
        self.step.assign(self.step.value + 1)


@pytest.fixture(autouse=True)
def _record_steps(monkeypatch):
    """Nothing is applied, so that every step begins with the same state."""

    def recording(optimizer, grads, *arguments):
        noise, clip_norms = optimizer._noise, optimizer.current_clipping.state["clip_norm"]
        pairs = list(zip(grads.gradients, noise.sum_stddevs(clip_norms), strict=True))
        parts = [ops.reshape(total / stddev, (-1,)) for total, stddev in pairs]
        if (num_statistics := grads.statistics.shape[0]) > 0:
            parts.append(grads.statistics / noise._statistics_stddev.value)
        parts.append(ops.zeros(2 - num_statistics))
        optimizer.inner_optimizer.record(ops.concatenate(parts))

    monkeypatch.setattr(DPOptimizer, "apply", recording)


def compiled(kind, clipping, num_steps, microbatch_size=None, **options):
    keras.utils.set_random_seed(0)
    stack = [keras.Input((4,)), layers.Dense(4, activation="tanh"), layers.Dense(3)]
    model = kind(stack)
    model.compile(
        optimizer=DPOptimizer(
            Recorder(num_steps),
            clipping=type(clipping).from_config(clipping.get_config()),
            noise_multiplier=NOISE_MULTIPLIER,
            microbatch_size=microbatch_size,
            seed=1,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    model.optimizer.build(model.trainable_variables)
    # AdaClip's centres leave zero, where a gradient of zeros is nothing in any coordinates.
    for name, variable in model.optimizer._clip._variables.items():
        if name.startswith("centre"):
            variable.assign(np.random.default_rng(0).normal(0.0, 1e-2, variable.shape))
    return model


def steps_of(model):
    return ops.convert_to_numpy(model.optimizer.inner_optimizer.seen)


def units(seed):
    """Inputs and targets, one row a unit: all rows of a unit are alike, so order does not matter.

    Also inputs with other ones for the unit that changes: of any length, and not finite.
    """
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(NUM_UNITS, 4)).astype("float32")
    y = generator.integers(0, 3, NUM_UNITS)
    values = [10.0**exponent * generator.normal(size=4) for exponent in (-6, -1, 0, 0, 6)]
    values += [x[CHANGED], np.full(4, np.nan), np.full(4, np.inf)]
    is_changed = np.arange(NUM_UNITS)[:, None] == CHANGED
    return x, y, [np.where(is_changed, value, x).astype("float32") for value in values]


def largest_distance(ones, others):
    """The largest distance of any two, by what one release of the noise multiplier allows."""
    distances = [np.linalg.norm(one - other) for one in ones for other in others]
    return NOISE_MULTIPLIER * max(distances)


def clients_of(x, y, num_rows, population=range(NUM_UNITS)):
    """Clients of `NUM_ROWS` examples, but the one that changes."""
    sizes = np.where(np.arange(NUM_UNITS) == CHANGED, num_rows, NUM_ROWS)
    ids = np.repeat(np.arange(NUM_UNITS), sizes)
    return ClientData.from_arrays(x[ids], y[ids], ids, population=population)


@pytest.mark.parametrize(("name", "options"), paired("one by one", "all", "weighted"))
def test_one_client_moves_sum_and_statistics_by_what_is_paid_for(name, options, monkeypatch):
    x, y, changed = units(list(CLIPPINGS).index(name))
    sizes = [NUM_ROWS, 1, 2, 4, 3, NUM_ROWS, 1, NUM_ROWS]
    present = [clients_of(each, y, size) for each, size in zip(changed, sizes, strict=True)]
    absent, removed = clients_of(x, y, 0), clients_of(x, y, 0, population=OTHERS)
    samplings = (Sampling.SHUFFLE, Sampling.FIXED, Sampling.POISSON)
    cases = [(sampling, clients) for sampling in samplings for clients in [*present, absent]]
    cases.append((Sampling.POISSON, removed))
    draw = CohortBatches.__getitem__

    def draw_of_case(cohorts, index):
        sampling, cohorts.clients = cases[index]
        size = len(cohorts.clients)
        facts = {"sampling": sampling, "expected_batch_size": size, "num_examples": size}
        cohorts.data = dataclasses.replace(cohorts.data, **facts)
        return draw(cohorts, 0)

    monkeypatch.setattr(CohortBatches, "__getitem__", draw_of_case)
    model = compiled(FederatedSequential, CLIPPINGS[name], len(cases), **OPTIONS[options])
    model.fit(present[0], NUM_UNITS, steps_per_epoch=len(cases), verbose=0)
    *steps, of_removed = steps_of(model)
    shuffled, fixed, drawn = np.split(np.array(steps), 3)
    for *of_present, of_absent in (shuffled, drawn, [*drawn[:-1], of_removed]):
        assert 0.2 < largest_distance(of_present, [of_absent]) <= 1.0001
    # A client may be replaced by an empty one too: the accountant is given half of the noise.
    assert 0.5 < largest_distance(fixed, fixed) <= 2.0002


@pytest.mark.filterwarnings("ignore:.*whatever the weight of an example:UserWarning")
@pytest.mark.filterwarnings("ignore:A row of the data stands:UserWarning")
@pytest.mark.parametrize(("name", "data"), paired("generator", "poisson", "shuffle"))
def test_one_example_moves_sum_and_statistics_by_what_is_paid_for(name, data, monkeypatch):
    """A hole is a row that is not there: the batch is that much smaller."""
    seed = list(CLIPPINGS).index(name)
    x, y, changed = units(seed)
    weights = np.linspace(0.0, 1.0, NUM_UNITS, dtype="float32")
    without_weight = np.where(np.arange(NUM_UNITS) == CHANGED, np.float32(0.0), weights)
    batches = [(each, y, weights) for each in changed]
    batches += [(x, y, without_weight), (x[OTHERS], y[OTHERS], weights[OTHERS])]
    rows = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    # TensorFlow looks at a draw beforehand: one of nothing tells where the cycle begins.
    is_drawn = data == "poisson"
    num_steps = len(batches) + is_drawn
    model = compiled(ka.PrivateSequential, CLIPPINGS[name], num_steps, seed % 3 or None)
    if data == "generator":
        arguments = {"x": iter(batches), "num_examples": len(rows[0])}
    else:
        numbers = np.split(np.arange(len(rows[0])), NUM_UNITS * np.arange(1, len(batches)))
        fix_draws(monkeypatch, [[], *numbers])
        arguments = dict(zip(("x", "y", "sample_weight"), rows, strict=True))
        arguments |= {"batch_size": NUM_UNITS, "sampling": data, "shuffle": False}
    model.fit(**arguments, steps_per_epoch=num_steps, verbose=0)
    steps = steps_of(model)
    if is_drawn:
        (first,) = np.flatnonzero(~np.any(steps, axis=1))
        steps = np.roll(steps, -first, axis=0)[1:]
    *present, absent = steps
    assert 0.5 < largest_distance(present, [absent]) <= 1.0001
