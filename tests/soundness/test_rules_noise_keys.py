"""Rule 2: keys come from the operating system, and no noise or draw ever comes twice."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip import backend, noise
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.optimizers.noise_state import NoiseState
from tests.soundness.setups import (
    COMPILED,
    MODES,
    NUM_DRAWS,
    dp_sgd,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    without_xla,
)

# For a pair of independent vectors of NUM_DRAWS normal numbers: false alarm 2e-9.
LARGEST_CORRELATION = 6.0 / np.sqrt(NUM_DRAWS)


def assert_all_different(updates):
    for one, other in itertools.combinations(updates, 2):
        assert np.mean(one == other) < 0.01
        assert abs(np.corrcoef(one, other)[0, 1]) < LARGEST_CORRELATION


def noise_of(model, num_steps, steps_per_epoch=1):
    recorder = recorded_fit(model, *pure_noise_data(), 4, num_steps, steps_per_epoch)
    return list(recorder.updates)


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        *((mode, None) for mode in MODES if mode != "eager" or mode in COMPILED),
        *((mode, 11) for mode in COMPILED),
    ],
)
def test_noise_never_repeats(mode, seed, tmp_path):
    options = MODES[mode]
    steps_per_epoch = options.get("steps_per_execution", 1)
    model = pure_noise_model(dp_sgd(seed=seed), **options)
    updates = noise_of(model, 3, steps_per_epoch)
    model.save(tmp_path / "model.keras")
    updates += noise_of(model, 2, steps_per_epoch)  # another fit
    model.compile(optimizer=dp_sgd(seed=seed), loss="mse", **without_xla(options))
    updates += noise_of(model, 2, steps_per_epoch)  # compiled again
    loaded = keras.models.load_model(tmp_path / "model.keras")
    updates += noise_of(loaded, 2, steps_per_epoch)  # loaded in a state before some of these
    loaded.load_weights(tmp_path / "model.keras")
    updates += noise_of(loaded, 2, steps_per_epoch)  # rewound
    assert_all_different(updates)


@pytest.mark.parametrize("mode", MODES)
def test_the_steps_of_one_compiled_epoch_have_noise_of_their_own(mode):
    """Four equal noises would add up to a standard deviation of 4, not 2."""
    model = pure_noise_model(dp_sgd(), **MODES[mode])
    (update,) = recorded_fit(model, *pure_noise_data(), 1, 1, steps_per_epoch=4).updates
    assert 1.9 < np.std(update) < 2.1


def test_tensors_of_one_step_have_noise_of_their_own():
    (update,) = noise_of(pure_noise_model(dp_sgd()), 1)
    assert_all_different(np.split(update, 2))


def test_the_key_is_what_the_operating_system_gives(monkeypatch):
    asked = []

    def urandom(size):
        asked.append(size)
        return bytes(range(1, size + 1))

    monkeypatch.setattr("os.urandom", urandom)
    key = noise.fresh_key()
    assert asked == [8]
    assert key.tobytes() == bytes(range(1, 9))


def test_the_global_seed_does_not_touch_the_noise():
    updates = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        np.random.seed(5)
        updates += noise_of(pure_noise_model(dp_sgd()), 1)
    assert_all_different(updates)


def test_a_seed_makes_the_noise_repeatable_and_another_seed_does_not():
    updates = []
    for seed in (3, 3, 4):
        keras.utils.set_random_seed(len(updates))
        updates += noise_of(pure_noise_model(dp_sgd(seed=seed)), 1)
    np.testing.assert_array_equal(updates[0], updates[1])
    assert_all_different(updates[1:])


def test_sums_statistics_and_augmentation_have_noise_of_their_own():
    """Equal noise on two releases would cancel out of their difference."""
    made = NoiseState(
        lambda name, value: keras.Variable(value, trainable=False, dtype=str(value.dtype)),
        3,
        ParameterGroups.single([(NUM_DRAWS,)]),
        "global",
    )
    made.configure(1.0, 1.0, 1, 0)
    made.begin_draw()
    zeros = ops.zeros((NUM_DRAWS,), "float32")
    drawn = [made.noised_means([zeros], [1.0])[0], made.noised_statistics(zeros)]
    drawn = [ops.convert_to_numpy(each) for each in drawn]
    assert_all_different(drawn)
    seed = ops.convert_to_numpy(made.augmentation_seed)
    assert all(np.all(np.abs(seed - np.abs(each[:2]) * 2.0**24) > 2) for each in drawn)


def test_keys_steps_and_streams_do_not_collide():
    """Neither words with equal sums, nor words that change places, nor step against stream."""
    sources = [
        ([3, 5], 0, 0),
        ([4, 4], 0, 0),
        ([5, 3], 0, 0),
        ([3, -5], 0, 0),
        ([3, 5], 0, 1),
        ([3, 5], 1, 0),
        ([3, 5], 1, 1),
        ([4, 5], 0, 0),
        ([3, 5], 2**20, 0),
        ([3, 5], 2**31 - 1, 0),
        ([3 + 2**30, 5], 0, 0),
        ([3, 5 - 2**31], 0, 0),
    ]
    drawn = [
        ops.convert_to_numpy(
            backend.gaussian(
                (NUM_DRAWS,),
                ops.convert_to_tensor(np.array(words, np.int32)),
                ops.convert_to_tensor(np.int32(step)),
                stream,
            )
        )
        for words, step, stream in sources
    ]
    assert_all_different(drawn)


def test_seeds_give_different_keys_and_earlier_steps_too():
    keys = [
        tuple(noise.fresh_key(seed, steps))
        for seed in (0, 1, 2**32, 2**32 + 1, 2**64)
        for steps in (0, 1, 2**20)
    ]
    assert len(set(keys)) == len(keys)
    assert tuple(noise.fresh_key(7, 3)) == tuple(noise.fresh_key(7, 3))


@pytest.mark.parametrize("seed", [None, 3])
def test_every_fit_draws_other_rows(seed, monkeypatch):
    drawn, draw = [], ka.sampling.PoissonDataset.draw

    def recording(dataset):
        drawn.append(tuple(draw(dataset)))
        return np.asarray(drawn[-1], np.int64)

    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", recording)
    model = line_model(dp_sgd(seed=seed))
    x, y = line_data([1.0] * 200)
    for _ in range(3):
        model.fit(x, y, batch_size=50, epochs=1, verbose=0)
    # Two draws of about 50 rows of 200 agree with probability below 1e-40.
    assert len(drawn) >= 12
    assert len(set(drawn)) == len(drawn)


def test_two_runs_that_go_on_from_one_file_draw_different_rows(monkeypatch, tmp_path):
    """Their ledgers add up as independent draws, with one seed too."""
    drawn, draw = [], ka.sampling.PoissonDataset.draw

    def recording(dataset):
        drawn.append(tuple(draw(dataset)))
        return np.asarray(drawn[-1], np.int64)

    model = line_model(dp_sgd(seed=3))
    x, y = line_data([1.0] * 200)
    model.fit(x, y, batch_size=50, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    known = {"minus_output": model.loss}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=known)
    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", recording)
    for each in (model, loaded):
        each.fit(x, y, batch_size=50, epochs=1, verbose=0)
    assert len(drawn) >= 8
    assert len(set(drawn)) == len(drawn)


def test_the_key_is_not_saved():
    """Who holds a checkpoint must not be able to subtract the noise that made it."""
    model = pure_noise_model(dp_sgd())
    noise_of(model, 1)
    key = next(v for v in model.optimizer.variables if v.name == "noise_key")
    before = np.array(ops.convert_to_numpy(key.value))
    store = {}
    model.optimizer.save_own_variables(store)
    words = {word for value in store.values() for word in np.ravel(value).tolist()}
    assert before.any()
    assert not words & set(before.tolist())
    np.testing.assert_array_equal(key, before)
