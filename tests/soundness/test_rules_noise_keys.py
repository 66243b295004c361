"""Rule 2: keys come from the operating system, and no noise or draw ever comes twice."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip import noise
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.optimizers.state import NoiseState
from tests.soundness import setups


def noise_of(model, num_steps=1):
    """The noise of each step on each of the two kernels, from one global seed."""
    keras.utils.set_random_seed(5)
    updates = setups.recorded_fit(model, *setups.pure_noise_data(), 4, num_steps).updates
    return [half for update in updates for half in np.split(update, 2)]


@pytest.mark.parametrize("mode", setups.COMPILED)
@pytest.mark.parametrize("seed", [None, 11])
def test_noise_never_repeats(mode, seed, tmp_path):
    model = setups.pure_noise_model(setups.dp_sgd(seed=seed), **setups.COMPILED[mode])
    drawn = noise_of(model, 3)
    model.save(tmp_path / "model.keras")
    drawn += noise_of(model)  # another fit
    model.compile(
        optimizer=setups.dp_sgd(seed=seed), loss="mse", **setups.without_xla(setups.COMPILED[mode])
    )
    drawn += noise_of(model, 2)  # compiled again
    loaded = keras.models.load_model(tmp_path / "model.keras")
    drawn += noise_of(loaded, 2)  # loaded in a state before some of these
    loaded.load_weights(tmp_path / "model.keras")
    drawn += noise_of(loaded)  # rewound
    setups.assert_all_different(drawn)


def test_the_key_is_what_the_operating_system_gives(monkeypatch):
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(1, size + 1)))
    assert noise.fresh_key().tobytes() == bytes(range(1, 9))


def test_a_seed_makes_the_noise_repeatable_and_another_seed_does_not():
    one, again, other = (
        noise_of(setups.pure_noise_model(setups.dp_sgd(seed=seed))) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, again)
    setups.assert_all_different([*one, *other])


def test_sums_and_statistics_have_noise_of_their_own_and_layers_a_seed_of_each_step():
    """Equal noise on two releases would cancel out of their difference."""
    made = NoiseState(
        lambda name, value: keras.Variable(value, trainable=False, dtype=str(value.dtype)),
        ParameterGroups.single([(setups.NUM_DRAWS,)]),
        "global",
    )
    made.configure(1.0, 1.0, 1)
    zeros, drawn, seeds = ops.zeros((setups.NUM_DRAWS,), "float32"), [], set()
    for _ in range(2):
        made.begin_draw()
        drawn += [made.noised_means([zeros], [1.0])[0], made.noised_statistics(zeros)]
        seed = ops.convert_to_numpy(made.seed_of_layers)
        seeds |= set(seed.tolist())
    setups.assert_all_different([ops.convert_to_numpy(each) for each in drawn])
    assert len(seeds) == 4
    made.key.assign(made.key + 1)
    assert not seeds & set(ops.convert_to_numpy(made.seed_of_layers).tolist())


@pytest.fixture
def drawn(monkeypatch):
    """All draws of rows, as tuples. Two draws of about 50 of 200 rows agree once in 1e40."""
    drawn, draw = [], ka.sampling.PoissonDataset.draw

    def recording(dataset):
        drawn.append(tuple(draw(dataset)))
        return np.asarray(drawn[-1], np.int64)

    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", recording)
    return drawn


@pytest.mark.parametrize("seed", [None, 3])
def test_no_fit_or_loaded_run_draws_the_same_rows_again(seed, drawn, tmp_path):
    """Ledgers of runs that go on from one file add up as independent draws, with one seed too."""
    model = setups.line_model(setups.dp_sgd(seed=seed))
    fit = {"batch_size": 50, "epochs": 1, "verbose": 0}
    for _ in range(2):
        model.fit(*setups.line_data([1.0] * 200), **fit)
    model.save(tmp_path / "model.keras")
    for each in (model, setups.load(tmp_path / "model.keras")):
        each.fit(*setups.line_data([1.0] * 200), **fit)
    assert len(drawn) >= 16
    assert len(set(drawn)) == len(drawn)
