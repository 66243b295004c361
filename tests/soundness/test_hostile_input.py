"""Whatever a user passes: a clear error before training, or a run whose ledger is right.

hypothesis draws optimizer, strategy, schedule, data and arguments of `fit`, good and bad ones
mixed. KERAS_ADACLIP_FUZZ=1000 tries as many; the default depends on how long a backend compiles.
"""

import os
import warnings

import keras
import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import keras_adaclip as ka
from tests.soundness.setups import without_xla

BACKEND = keras.backend.backend()
NUM_TRIES = int(os.environ.get("KERAS_ADACLIP_FUZZ", {"torch": 200}.get(BACKEND, 40)))
NUM_EXAMPLES = 12
NAN, INF = float("nan"), float("inf")
# How often something good is drawn, so that not every run has something bad in it.
GOOD, BAD = 15, 1


def mostly(good, bad):
    return st.sampled_from([*(good * GOOD), *(bad * BAD)])


numbers = mostly([0.5, 1.0, 2, np.float32(1.5)], [0, -1.0, NAN, INF, 1e39, 1e-46, "1", None, True])
shares = mostly([0.3, 0.5, 0.9], [0.0, 1.0, -0.1, 1.1, NAN, "0.5", None])
integers = mostly([None, 1, 3, np.int64(4)], [0, -1, 2.5, "3", 10**12, True])


@st.composite
def schedules(draw):
    """A function that makes a schedule, or fails to."""
    kind = draw(st.sampled_from(["linear", "exponential", "power", "piecewise"]))
    first, second = draw(numbers), draw(numbers)
    steps = draw(mostly([None, 2, 5], [0, -1, 1.5, NAN, "2"]))
    return lambda: {
        "linear": lambda: ka.schedules.LinearDecay(first, 4 if steps is None else steps),
        "exponential": lambda: ka.schedules.ExponentialDecay(
            first, second, 4 if steps is None else steps
        ),
        "power": lambda: ka.schedules.PowerDecay(first, second, steps_per_epoch=steps),
        "piecewise": lambda: ka.schedules.PiecewiseConstant([first, second], steps_per_epoch=steps),
    }[kind]()


@st.composite
def clippings(draw):
    """A function that makes what is passed as `clipping`, or fails to."""
    kind = draw(st.sampled_from(["number", "name", "fixed", "quantile", "scheduled", "others"]))
    norm, share, noise = draw(numbers), draw(shares), draw(mostly([3.0, 9.0], [0.0, NAN, "3"]))
    groups = draw(mostly(["flat", "per_layer"], ["layers", None, 3]))
    allocation = draw(mostly(["global", "proportional"], ["fair", None]))
    grouped = {"groups": groups, "noise_allocation": allocation}
    schedule = draw(schedules())
    name = draw(mostly(["automatic", "quantile"], ["median", ""]))
    other = draw(st.sampled_from(["automatic", "mean norm", "adaclip"]))
    others = {
        "automatic": lambda: ka.clipping.AutomaticClipping(norm, share, **grouped),
        "mean norm": lambda: ka.clipping.MeanNormClipping(
            initial_clip_norm=norm, mean_noise_stddev=noise, **grouped
        ),
        "adaclip": lambda: ka.clipping.AdaClip(beta1=share, max_variance=norm),
    }
    return {
        "number": lambda: norm,
        "name": lambda: name,
        "fixed": lambda: ka.clipping.FixedClipping(norm, **grouped),
        "quantile": lambda: ka.clipping.QuantileClipping(
            share, norm, count_noise_stddev=noise, **grouped
        ),
        "scheduled": lambda: ka.clipping.ScheduledClipping(schedule(), **grouped),
        "others": others[other],
    }[kind]


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


class Steps(keras.callbacks.Callback):
    """How many steps Keras made."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def layers():
    return [keras.Input((2,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1)]


counted = {"tries": 0, "errors": 0, "runs": 0}


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
    options,
    clippings(),
    st.one_of(st.none(), schedules()),
    data(),
    arguments,
    numbers,
    st.booleans(),
)
def try_one(options, clipping, noise_schedule, data, arguments, target, has_target):
    counted["tries"] += 1
    x, y, weights = data
    note(f"{options} {arguments} target={target if has_target else None}")
    model, steps = ka.PrivateSequential(layers()), Steps()
    before, error = model.get_weights(), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if noise_schedule is not None and has_target:
                options = {**options, "noise_multiplier": noise_schedule()}
            optimizer = ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(0.1), clipping=clipping(), **options
            )
            eager = {"run_eagerly": True} if BACKEND == "tensorflow" else {}
            model.compile(optimizer=optimizer, loss="mse", **without_xla(eager))
            callbacks = [steps]
            if has_target:
                callbacks.append(ka.callbacks.PrivacyCallback(1e-3, target_epsilon=target))
            model.fit(x, y, sample_weight=weights, callbacks=callbacks, verbose=0, **arguments)
        except (ValueError, TypeError) as caught:
            error = caught
    if error is not None:
        assert str(error), "an error without a word"
        assert steps.count == 0, f"training had begun when it ended with {error!r}"
        for now, then in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(now, then)
        counted["errors"] += 1
        return
    counted["runs"] += 1
    assert model.privacy_ledger.steps == steps.count
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    batch_size = 32 if arguments["batch_size"] is None else arguments["batch_size"]
    for row in model.privacy_ledger:
        if row.steps == 0:
            continue
        assert row.num_examples == NUM_EXAMPLES
        assert row.expected_batch_size == batch_size
        assert row.sampling.name.lower() == arguments["sampling"]
        if isinstance(options["noise_multiplier"], (int, float)):
            assert row.noise_multiplier == np.float32(options["noise_multiplier"])
    spent = model.privacy_spent(1e-3).epsilon
    noise_multiplier = options["noise_multiplier"]
    if isinstance(noise_multiplier, (int, float)) and noise_multiplier > 0 and steps.count:
        expected = ka.accounting.compute_epsilon(
            noise_multiplier,
            NUM_EXAMPLES,
            batch_size,
            steps=steps.count,
            delta=1e-3,
            sampling=arguments["sampling"],
        )
        np.testing.assert_allclose(spent, expected, rtol=1e-5)
    if has_target and target is not None and steps.count:
        assert spent <= target
    assert (spent == np.inf) == any(
        row.noise_multiplier == 0 and row.steps for row in model.privacy_ledger
    )


def test_an_error_before_training_or_a_right_ledger():
    try_one()
    print(counted)
    # Most drawn inputs are wrong somewhere; enough must not be, or nothing was tried.
    assert counted["tries"] >= NUM_TRIES
    assert counted["runs"] > 0.05 * NUM_TRIES
    assert counted["errors"] > 0.3 * NUM_TRIES
