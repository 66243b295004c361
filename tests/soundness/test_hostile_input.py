"""For any input of a user: a clear error before training, or a run whose ledger is right.

hypothesis draws optimizer, strategy, schedule, data and arguments of `fit`, good and bad ones
mixed. `KERAS_ADACLIP_FUZZ` is their number; the default is smaller where compiling takes long.
"""

import os

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import keras_adaclip as ka
from tests.soundness.setups import without_xla

BACKEND = keras.backend.backend()
NUM_TRIES = int(os.environ.get("KERAS_ADACLIP_FUZZ", {"torch": 100}.get(BACKEND, 30)))
NUM_EXAMPLES = 12
NAN, INF = float("nan"), float("inf")
# How often something good is drawn, so that not every run has something bad in it.
GOOD, BAD = 40, 1


def mostly(good, bad):
    return st.sampled_from([*(good * GOOD), *(bad * BAD)])


numbers = mostly([0.5, 1.0, 2, np.float32(1.5)], [0, -1.0, NAN, INF, 1e39, 1e-46, "1", None, True])
shares = mostly([0.3, 0.5, 0.9], [0.0, 1.0, -0.1, 1.1, NAN, "0.5", None])
integers = mostly([None, 1, 3, np.int64(4)], [0, -1, 2.5, "3", 10**12, True])


@st.composite
def schedules(draw):
    first, second = draw(numbers), draw(numbers)
    steps = draw(mostly([None, 2, 5], [0, -1, 1.5, NAN, "2"]))
    total_steps = 4 if steps is None else steps
    module = ka.schedules
    kinds = [
        lambda: module.LinearDecay(first, total_steps),
        lambda: module.ExponentialDecay(first, second, total_steps),
        lambda: module.PowerDecay(first, second, steps_per_epoch=steps),
        lambda: module.PiecewiseConstant([first, second], steps_per_epoch=steps),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def clippings(draw):
    norm, share, noise = draw(numbers), draw(shares), draw(mostly([3.0, 9.0], [0.0, NAN, "3"]))
    grouped = {
        "groups": draw(mostly(["flat", "per_layer"], ["layers", None, 3])),
        "noise_allocation": draw(mostly(["global", "proportional"], ["fair", None])),
    }
    schedule, name = draw(schedules()), draw(mostly(["automatic", "quantile"], ["median", ""]))
    module = ka.clipping
    kinds = [
        lambda: norm,
        lambda: name,
        lambda: module.FixedClipping(norm, **grouped),
        lambda: module.QuantileClipping(share, norm, count_noise_stddev=noise, **grouped),
        lambda: module.ScheduledClipping(schedule(), **grouped),
        lambda: module.AutomaticClipping(norm, share, **grouped),
        lambda: module.PSAC(norm, share, **grouped),
        lambda: module.ExpectedErrorClipping(norm, excess_noise_stddev=noise, **grouped),
        lambda: module.MeanNormClipping(norm, mean_noise_stddev=noise, **grouped),
        lambda: module.SlaClip(norm, learning_rate=noise or 0.2),
        lambda: module.AdaClip(beta1=share, max_variance=norm),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def data(draw):
    """Inputs, targets and weights: numbers that are none, lengths that differ, wrong kinds."""
    generator = np.random.default_rng(draw(st.integers(0, 3)))
    x = generator.normal(size=(NUM_EXAMPLES, 2)).astype("float32")
    y = generator.normal(size=(NUM_EXAMPLES, 1)).astype("float32")
    x[draw(st.integers(0, NUM_EXAMPLES - 1))] *= draw(mostly([1.0], [NAN, INF, 1e38, 0.0]))
    y = draw(mostly([y, y.astype("float64")], [y[:-1], None, y.astype(str), y[:0], "y"]))
    x = draw(mostly([x, x.astype("float64")], [x[:, :1], None, x.astype(str), x[:0], 3, [1, 2]]))
    weights = generator.random(NUM_EXAMPLES)
    weights = draw(mostly([None, weights], [-weights, weights[:-1], NAN * weights, 1e38 * weights]))
    return x, y, weights


arguments = st.fixed_dictionaries(
    {
        "batch_size": integers,
        "epochs": mostly([1, 2], [0, -1]),
        "steps_per_epoch": mostly([None, 2, 3], [0, -1, 1.5, "2"]),
        "sampling": mostly(["poisson", "shuffle"], ["fixed", "", None, 3]),
        "initial_epoch": mostly([0], [1]),
        "class_weight": mostly([None], [{0: -1.0}, {"a": 1.0}]),
    }
)
options = st.fixed_dictionaries(
    {
        "noise_multiplier": mostly([1.0, 0.7, 2], [0.0, -1.0, NAN, INF, 1e39, "1", None, True]),
        "microbatch_size": integers,
        "seed": mostly([None, 0, 7], [-1, 1.5, "7", True]),
        "gradient_method": mostly(["auto", "layerwise"], ["fast", None]),
    }
)

counted = {"errors": 0, "runs": 0}


@settings(
    max_examples=NUM_TRIES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
    # Making a failing input smaller would take minutes.
    phases=[Phase.generate],
)
@given(
    options=options,
    clipping=clippings(),
    noise_schedule=st.one_of(st.none(), schedules()),
    data=data(),
    arguments=arguments,
    target=st.one_of(st.none(), numbers),
)
def try_one(options, clipping, noise_schedule, data, arguments, target):
    x, y, weights = data
    note(f"{options} {arguments} {target=}")
    layers = [keras.Input((2,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1)]
    model, steps = ka.PrivateSequential(layers), []
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(1))
    before, error = model.get_weights(), None
    try:
        callbacks = [counter]
        if target is not None:
            callbacks.append(ka.callbacks.PrivacyCallback(1e-3, target_epsilon=target))
        if noise_schedule is not None and target is not None:
            options = {**options, "noise_multiplier": noise_schedule()}
        inner = keras.optimizers.SGD(0.1)
        optimizer = ka.optimizers.DPOptimizer(inner, clipping=clipping(), **options)
        eager = {"run_eagerly": True} if BACKEND == "tensorflow" else {}
        model.compile(optimizer=optimizer, loss="mse", **without_xla(eager))
        model.fit(x, y, sample_weight=weights, callbacks=callbacks, verbose=0, **arguments)
    except (ValueError, TypeError) as caught:
        error = caught
    if error is not None:
        assert str(error), "an error without a word"
        assert not steps, f"training had begun when it ended with {error!r}"
        for now, then in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(now, then)
        counted["errors"] += 1
        return
    counted["runs"] += 1
    assert_ledger_is_right(model, len(steps), options["noise_multiplier"], arguments, target)


def assert_ledger_is_right(model, num_steps, noise_multiplier, arguments, target):
    assert model.privacy_ledger.steps == num_steps
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    batch_size = arguments["batch_size"] or min(32, NUM_EXAMPLES)
    is_constant = isinstance(noise_multiplier, (int, float))
    rows = [row for row in model.privacy_ledger if row.steps > 0]
    for row in rows:
        assert (row.num_examples, row.expected_batch_size) == (NUM_EXAMPLES, batch_size)
        assert row.sampling.name.lower() == arguments["sampling"]
        assert not is_constant or row.noise_multiplier == np.float32(noise_multiplier)
    spent = model.privacy_spent(1e-3).epsilon
    assert (spent == np.inf) == any(row.noise_multiplier == 0 for row in rows)
    if is_constant and noise_multiplier > 0 and num_steps:
        plan = {"steps": num_steps, "delta": 1e-3, "sampling": arguments["sampling"]}
        expected = ka.accounting.compute_epsilon(noise_multiplier, NUM_EXAMPLES, batch_size, **plan)
        np.testing.assert_allclose(spent, expected, rtol=1e-5)
    if target is not None and num_steps:
        assert spent <= target


@pytest.mark.filterwarnings("ignore")
def test_an_error_before_training_or_a_right_ledger():
    try_one()
    # Most drawn inputs are wrong somewhere; enough must not be, or nothing was tried.
    assert sum(counted.values()) >= NUM_TRIES, counted
    assert counted["runs"] > 0.05 * NUM_TRIES, counted
    assert counted["errors"] > 0.3 * NUM_TRIES, counted
