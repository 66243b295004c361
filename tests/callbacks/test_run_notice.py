"""What `fit` says of its cost before the first step, and when it ends early."""

import re

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers
from tests.models.helpers import DELTA, planned

X, Y = helpers.features(), helpers.labels()


def fit(*data, model=None, target=None, epochs=2, **options):
    model = model or helpers.compiled()
    budget = ka.callbacks.PrivacyCallback(DELTA, target)
    return model.fit(*data, epochs=epochs, callbacks=[budget], **{"verbose": 2, **options})


def numbers(pattern, text):
    (found,) = re.findall(pattern, text)
    return [float(each) for each in ([found] if isinstance(found, str) else found)]


def batches():
    while True:
        yield X[:6], Y[:6]


# A generator and shuffled passes, with the sampling that they are accounted as and its releases.
WITHOUT_AMPLIFICATION = {
    "generator": ([batches], {"num_examples": 24, "steps_per_epoch": 4}, 8, "each step"),
    "shuffle": ([X, Y], {"batch_size": 6, "sampling": "shuffle"}, 2, "each pass"),
}


def test_the_first_line_says_what_will_be_spent(capsys):
    model = helpers.compiled()
    history = fit(X, Y, batch_size=6, model=model, target=planned(8) * (1 + 1e-9))
    assert history.ended_early is None
    out = capsys.readouterr().out
    assert "ended" not in out
    line = out.splitlines()[0]
    assert "8 steps on Poisson batches of 6 from 24 examples, noise multiplier 1." in line
    assert numbers(r"at the end: ([\d.]+) at delta 0.001\.", line) == [
        pytest.approx(planned(8), rel=0.02)
    ]
    fit(X, Y, batch_size=6, model=model, verbose=0)
    assert capsys.readouterr().out == ""
    # Without `delta`, that of the number of examples.
    model = helpers.compiled()
    model.fit(X, Y, batch_size=6, callbacks=[ka.callbacks.PrivacyCallback()], verbose=2)
    assert f"delta {24**-1.1:.3g} (24 ** -1.1)" in capsys.readouterr().out
    fit(X, Y, batch_size=6, model=model, epochs=3, verbose=0)
    fit(X, Y, batch_size=6, model=model, epochs=1)
    line = capsys.readouterr().out.splitlines()[0]
    assert numbers(r"end: ([\d.]+) at delta 0.001, ([\d.]+) of it spent before", line) == [
        pytest.approx(planned(steps), rel=0.02) for steps in (20, 16)
    ]


@pytest.mark.parametrize("kind", WITHOUT_AMPLIFICATION)
def test_data_that_are_not_sampled_have_their_price_said(kind, capsys):
    data, options, releases, counted = WITHOUT_AMPLIFICATION[kind]
    fit(*(each() if callable(each) else each for each in data), **options)
    line = capsys.readouterr().out.splitlines()[0]
    assert f"{counted} accounted as a full release" in line
    assert numbers(r"end: ([\d.]+) at .* would take ([\d.]+) \(", line) == [
        pytest.approx(planned(releases, sampling="stream"), rel=0.02),
        pytest.approx(planned(8), rel=0.02),
    ]


def test_an_early_end_says_where_and_what_would_fit(capsys):
    target = planned(6) * (1 + 1e-9)
    history = fit(X, Y, batch_size=6, target=target, epochs=3)
    out = capsys.readouterr().out
    assert "Training ends before epsilon passes" in out.splitlines()[0]
    # The bar of the second epoch: two of four steps ran.
    assert re.findall(r"(\d/\d) - ", out) == ["4/4", "2/4"]
    assert out.splitlines()[-1] == history.ended_early
    assert "after 6 of 12 steps (epoch 2 of 3) at epsilon" in history.ended_early
    noise, larger = numbers(r"noise_multiplier=([\d.]+)` or `target_epsilon=([\d.]+)", out)
    assert 0.98 * target < planned(12, noise_multiplier=noise) <= target
    assert planned(12) <= larger < 1.02 * planned(12)


def test_a_plan_follows_the_schedule_of_the_noise(capsys):
    schedule = ka.schedules.PiecewiseConstant([2.0, 1.0])
    history = fit(X, Y, batch_size=6, model=helpers.compiled(noise_multiplier=schedule))
    line = capsys.readouterr().out.splitlines()[0]
    assert "noise multiplier 2 to 1." in line
    assert numbers(r"at the end: ([\d.]+)", line) == [
        pytest.approx(history.history["epsilon"][-1], rel=0.02)
    ]


@pytest.mark.parametrize(
    ("noise_multiplier", "epochs", "text"),
    [
        (0.0, 1, "infinite. Training without noise is not private."),
        (1.0, 10**9, "an unknown number of steps on Poisson batches of 6 from 24"),
        (1.0, 0, ""),
    ],
)
def test_runs_without_noise_end_or_steps(noise_multiplier, epochs, text, capsys):
    model = helpers.compiled(noise_multiplier=noise_multiplier)
    end = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: setattr(model, "stop_training", True)
    )
    model.fit(X, Y, batch_size=6, epochs=epochs, callbacks=[end], verbose=2)
    out = capsys.readouterr().out
    assert text in out
    assert epochs or out == ""


def test_rows_that_cannot_contribute_are_counted(capsys):
    x = X.copy()
    x[2, :2], x[5, 1] = np.nan, np.inf
    fit(x, Y, batch_size=6, epochs=1)
    assert "2 of 24 examples hold NaN or infinity" in capsys.readouterr().out.splitlines()[1]
    fit(X, Y, batch_size=6, epochs=1)
    assert "NaN" not in capsys.readouterr().out


def test_rounds_are_planned_in_clients(capsys):
    clients = ka.federated.ClientData.from_arrays(X, Y, np.arange(24) // 4)
    model = ka.federate(keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(3)]))
    optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(clients, cohort_size=3, epochs=2, verbose=2)
    line = capsys.readouterr().out.splitlines()[0]
    assert "4 steps on Poisson cohorts of 3 from 6 clients, noise multiplier 1." in line
    assert f"delta {6**-1.1:.3g} (6 ** -1.1)" in line
