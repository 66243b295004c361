"""Real searches, tiny: what each trial begins from, clips to, and refuses."""

import warnings

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip import tuners
from tests.soundness.setups import flat_weights, line_data, minus_output, without_xla

NUM_EXAMPLES, BATCH_SIZE, STEPS = 8, 4, 2


def build(hp, clipping=1.0, noise_multiplier=0.0, **options):
    """A kernel whose example gradients are minus the inputs; the validation loss falls with it."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="glorot_normal")
    model = ka.PrivateSequential([keras.Input((1,)), dense])
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.5),
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        **options,
    )
    model.compile(optimizer=optimizer, loss=minus_output, **without_xla({}))
    return model


def tuner_in(folder, hypermodel=build, **options):
    settings = {"start": 0.5, "step": 0.5, "max_drop": 10.0, "epochs": 2, "objective": "val_loss"}
    settings |= {"max_trials_per_epoch": 2, "directory": folder, "project_name": "search"}
    return tuners.GreedyClipTuner(hypermodel, **{**settings, **options})


def search(tuner, **options):
    x, y = line_data([10.0] * NUM_EXAMPLES)
    x_val, y_val = line_data([1.0] * 4)
    settings = {"validation_data": (x_val, y_val), "batch_size": BATCH_SIZE, "verbose": 0}
    tuner.search(x, y, **{**settings, **options})


class Notes(keras.callbacks.Callback):
    """What each trial had before its first step and after its last one; copies share the list."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def __deepcopy__(self, memo):
        return Notes(self.notes)

    def on_epoch_begin(self, epoch, logs=None):
        self.notes.append({"epoch": epoch, "before": state_of(self.model)})

    def on_epoch_end(self, epoch, logs=None):
        self.notes[-1]["after"] = state_of(self.model)


def state_of(model):
    optimizer = model.optimizer
    inner = [np.asarray(keras.ops.convert_to_numpy(v)) for v in optimizer.inner_optimizer.variables]
    return {
        "weights": flat_weights(model),
        "optimizer": np.concatenate([np.ravel(value) for value in inner]),
        "steps": optimizer.ledger.steps,
        "clip_norm": optimizer.clip_norm,
    }


def loaded(tuner):
    """The model of the last epoch's best trial, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = tuner.load_model(tuner.oracle.trials[tuner.oracle.finished_epochs[-1].winner])
    return model, [str(one.message) for one in caught if one.category is UserWarning]


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in ("weights", "optimizer"))


def test_an_epoch_begins_with_what_the_best_trial_ended_with(tmp_path):
    """Weights and momentum; and every first trial with the same weights. The ledger only grows."""
    notes = []
    tuner = tuner_in(tmp_path, lambda hp: build(hp, 3.0, noise_multiplier=1.0))
    search(tuner, callbacks=[Notes(notes)])
    assert [note["epoch"] for note in notes] == [0, 0, 1, 1]
    assert [note["before"]["clip_norm"] for note in notes] == [0.5, 1.0] * 2
    assert [note["before"]["steps"] for note in notes] == [0, STEPS, 2 * STEPS, 3 * STEPS]
    assert same(notes[0]["before"], notes[1]["before"])
    first = int(np.argmax([note["after"]["weights"][0] for note in notes[:2]]))
    assert tuner.best_schedule().values[0] == [0.5, 1.0][first]
    for note in notes[2:]:
        assert same(note["before"], notes[first]["after"])
    second = 2 + int(np.argmax([note["after"]["weights"][0] for note in notes[2:]]))
    kept, (warning,) = loaded(tuner)
    assert "among 4 trials by a search that is not private" in warning
    tuning = kept.privacy_report(1e-3, group_sizes=()).tuning
    assert "not counted: The model was chosen among 4 trials" in tuning
    assert same(state_of(kept), notes[second]["after"])
    assert kept.privacy_ledger.steps >= 3 * STEPS
    assert kept.optimizer.clip_norm == pytest.approx(tuner.best_schedule().values[-1])


def test_training_clips_to_the_threshold_of_the_trial(tmp_path, monkeypatch):
    """Every gradient is 10 long, so a step without noise moves by the threshold."""
    monkeypatch.setattr(
        ka.sampling.PoissonDataset, "draw", lambda dataset: np.arange(BATCH_SIZE, dtype=np.int64)
    )
    notes = []
    tuner = tuner_in(tmp_path, epochs=1, max_trials_per_epoch=4, step=0.25)
    search(tuner, callbacks=[Notes(notes)])
    moved = [float((n["after"]["weights"] - n["before"]["weights"])[0]) for n in notes]
    # Two steps of SGD with momentum: 0.1 C, then 0.1 C and half of the first.
    expected = [0.25 * norm for norm in (0.5, 0.75, 1.0, 1.25)]
    np.testing.assert_allclose(moved, expected, rtol=1e-4)
    assert tuner.best_schedule().values == [1.25]


def test_the_threshold_is_the_joint_norm_of_groups(tmp_path):
    notes = []
    per_layer = ka.clipping.FixedClipping(3.0, groups="per_layer")
    tuner = tuner_in(tmp_path, lambda hp: build(hp, per_layer), epochs=1)
    search(tuner, callbacks=[Notes(notes)])
    norms = [float(np.linalg.norm(note["before"]["clip_norm"])) for note in notes]
    assert norms == pytest.approx([0.5, 1.0])


def test_no_two_trials_share_their_noise(tmp_path):
    """With one noise and two norms, their difference would lay the noise bare."""
    notes = []
    tuner = tuner_in(tmp_path, lambda hp: build(hp, noise_multiplier=1.0, seed=7), epochs=1)
    x, y = line_data([0.0] * NUM_EXAMPLES)
    search_data = {"validation_data": (x, y), "batch_size": BATCH_SIZE, "verbose": 0}
    tuner.search(x, y, callbacks=[Notes(notes)], **search_data)
    first, second = [
        (note["after"]["weights"] - note["before"]["weights"]) / note["before"]["clip_norm"]
        for note in notes
    ]
    assert not np.isclose(first, second)


def plain_model(hp):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def used_model(hp):
    model = build(hp)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize(
    "hypermodel",
    [
        plain_model,
        used_model,
        lambda hp: build(hp, "quantile"),
        lambda hp: build(hp, ka.clipping.FixedClipping([1.0])),
    ],
)
def test_models_without_a_norm_to_set_are_refused_before_training(tmp_path, hypermodel):
    tuner = tuner_in(tmp_path, hypermodel)
    with pytest.raises(TypeError, match="must return a new private model"):
        search(tuner)
    assert not tuner.oracle.trials


def test_the_epoch_is_not_the_users(tmp_path):
    with pytest.raises(ValueError, match="`epochs` belongs to the search"):
        search(tuner_in(tmp_path), epochs=3)


class TrainsTwice(keras_tuner.HyperModel):
    def build(self, hp):
        return build(hp)

    def fit(self, hp, model, *arguments, **keywords):
        return model.fit(*arguments, **{**keywords, "epochs": keywords["epochs"] + 1})


def test_a_trial_of_more_than_its_epoch_fails(tmp_path):
    with pytest.raises(RuntimeError, match="must train exactly one epoch") as raised:
        search(tuner_in(tmp_path, TrainsTwice()))
    assert "Epoch 1 with clip_norm=0.5 failed" in str(raised.value)
