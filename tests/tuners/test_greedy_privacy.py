"""With `private=True` all trials count, whatever became of them, before their first step."""

import dp_accounting
import keras
import pytest
from dp_accounting.pld import PLDAccountant

from keras_adaclip.accounting import read_ledger
from tests.tuners.test_greedy_clip_tuner import (
    BATCH_SIZE,
    NUM_EXAMPLES,
    STEPS,
    build,
    loaded,
    search,
)
from tests.tuners.test_greedy_clip_tuner import tuner_in as tuner_of

DELTA, NOISE = 1e-3, 2.0


def private_build(hp):
    return build(hp, noise_multiplier=NOISE)


def tuner_in(folder, hypermodel=private_build, **options):
    return tuner_of(folder, hypermodel, private=True, delta=DELTA, **options)


def epsilon_of(num_epochs, noise=NOISE):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise)
    event = dp_accounting.PoissonSampledDpEvent(BATCH_SIZE / NUM_EXAMPLES, gaussian)
    accountant.compose(event, num_epochs * STEPS)
    return accountant.get_epsilon(DELTA)


class Dies(keras.callbacks.Callback):
    """Stops the search before a trial's first step, or after it, as a killed process does."""

    def __init__(self, moment, seen, action):
        super().__init__()
        self.moment, self.seen, self.action = moment, seen, action

    def __deepcopy__(self, memo):
        return Dies(self.moment, self.seen, self.action)

    def on_epoch_begin(self, epoch, logs=None):
        self.act("begin")

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            self.act("step")

    def act(self, moment):
        if moment == self.moment:
            self.seen.append(moment)
            self.action(len(self.seen))


def test_epsilon_is_that_of_all_trials_composed(tmp_path, capsys):
    tuner = tuner_in(tmp_path)
    search(tuner)
    spent = tuner.privacy_spent()
    assert spent.steps == 4 * STEPS
    assert spent.epsilon == pytest.approx(epsilon_of(4), rel=1e-6)
    # Two epochs of the four have led to its model, which was chosen among all of them.
    model, warnings = loaded(tuner)
    assert warnings == []
    assert model.privacy_ledger == tuner.privacy_ledger
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert again.privacy_spent(DELTA) == spent
    assert read_ledger(tmp_path / "model.keras") == tuner.privacy_ledger
    tuner.results_summary()
    assert "private data" in capsys.readouterr().out
    # Another object on the same folder knows as much, or that it does not.
    resumed = tuner_in(tmp_path)
    assert resumed.privacy_spent() == spent
    for path in tmp_path.glob("search/trial_0002/spent_*.json"):
        path.unlink()
    for one in (tuner, resumed):
        with pytest.raises(RuntimeError, match="trial 0002 has run, and its account is not"):
            one.privacy_spent()


@pytest.mark.parametrize(("moment", "error"), [("begin", ValueError), ("step", KeyboardInterrupt)])
def test_a_trial_that_was_begun_counts_as_an_epoch_and_again_when_repeated(tmp_path, moment, error):
    def third_dies(number):
        if number == 3:
            raise error("enough")

    tuner = tuner_in(tmp_path)
    expected = KeyboardInterrupt if error is KeyboardInterrupt else RuntimeError
    with pytest.raises(expected):
        search(tuner, callbacks=[Dies(moment, [], third_dies)])
    assert tuner.privacy_ledger.steps == 3 * STEPS
    resumed = tuner_in(tmp_path)
    assert resumed.privacy_ledger.steps == 3 * STEPS
    search(resumed)
    assert resumed.privacy_ledger.steps == 5 * STEPS
    assert resumed.privacy_spent().epsilon == pytest.approx(epsilon_of(5), rel=1e-6)


def test_an_epoch_is_on_disk_before_its_first_step(tmp_path):
    on_disk = []
    tuner = tuner_in(tmp_path)
    watch = Dies("begin", [], lambda number: on_disk.append(tuner_in(tmp_path).privacy_ledger))
    search(tuner, callbacks=[watch])
    assert [ledger.steps for ledger in on_disk] == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]


def test_an_epoch_counts_with_its_own_noise(tmp_path):
    from keras_adaclip.schedules import PiecewiseConstant

    tuner = tuner_in(tmp_path, lambda hp: build(hp, noise_multiplier=PiecewiseConstant([2.0, 4.0])))
    search(tuner)
    noises = {row.noise_multiplier: row.steps for row in tuner.privacy_ledger}
    assert noises == {2.0: 2 * STEPS, 4.0: 2 * STEPS}


def test_noise_and_draws_of_private_data_have_no_seed(tmp_path):
    """A trial that is run again with a seed would draw the same examples again."""
    seeds = []

    class Seeds(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            return Seeds()

        def on_epoch_begin(self, epoch, logs=None):
            seeds.append(self.model.optimizer.seed)

    search(tuner_in(tmp_path, lambda hp: build(hp, seed=7)), callbacks=[Seeds()])
    assert seeds == [None] * 4
    with pytest.raises(ValueError, match="`seed` cannot be combined with `private=True`"):
        tuner_in(tmp_path, seed=1)


def test_what_was_spent_is_not_forgotten(tmp_path):
    search(tuner_in(tmp_path, epochs=1))
    for options in ({"private": True, "delta": DELTA}, {}):
        with pytest.raises(ValueError, match="`overwrite` must be False here"):
            tuner_of(tmp_path, overwrite=True, **options)
    with pytest.raises(ValueError, match="begun with other settings"):
        tuner_of(tmp_path)
    assert tuner_in(tmp_path).privacy_ledger.steps == 2 * STEPS


def test_delta_and_private_go_together(tmp_path):
    with pytest.raises(ValueError, match="`delta` is needed"):
        tuner_of(tmp_path, private=True)
    with pytest.raises(ValueError, match="`delta` goes with"):
        tuner_of(tmp_path, delta=DELTA)
    with pytest.raises(RuntimeError, match="`private=True` only"):
        tuner_of(tmp_path).privacy_spent(DELTA)
