"""Passes and epochs: no row is used more often than releases are counted.

Row i is the i-th unit vector and the loss is minus the output, so the kernel counts the uses of
each row. Without noise, nothing blurs the count.
"""

import itertools

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.soundness import setups

N, BATCH = 24, 3
ROWS = np.eye(N, dtype="float32"), np.zeros((N, 1), "float32")
BACKEND = keras.backend.backend()


class Rows(keras.utils.PyDataset):
    order = np.arange(N)

    def __len__(self):
        return N // BATCH

    def __getitem__(self, index):
        numbers = self.order[BATCH * index : BATCH * (index + 1)]
        return tuple(part[numbers] for part in ROWS)

    def shuffle(self):
        self.order = np.random.default_rng(self.order[:2]).permutation(N)


class ShuffledAtTheEnd(Rows):
    def on_epoch_end(self):
        self.shuffle()


class ShuffledAtTheBeginning(Rows):
    def on_epoch_begin(self):
        self.shuffle()


def tf_dataset():
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.data.Dataset.from_tensor_slices(ROWS).shuffle(N).batch(BATCH)


def of_unknown_length():
    return tf_dataset().filter(lambda x, y: True)


def loader(shuffle=False, **samplers):
    data = pytest.importorskip("torch.utils.data")
    samplers = {name: make(data) for name, make in samplers.items()}
    options = {} if "batch_sampler" in samplers else {"batch_size": BATCH, "shuffle": shuffle}
    return data.DataLoader(list(zip(*ROWS, strict=True)), **options, **samplers)


def stream(passes=1):
    data = pytest.importorskip("torch.utils.data")

    class Examples(data.IterableDataset):
        def __iter__(self):
            for _ in range(passes):
                yield from zip(*ROWS, strict=True)

    return data.DataLoader(Examples(), batch_size=BATCH)


def generator():
    yield from (Rows()[index] for index in range(N // BATCH))


DATA_SETS = {
    "in order": Rows,
    "order of batches": Rows,  # Keras shuffles it.
    "shuffled at the end": ShuffledAtTheEnd,
    "shuffled at the beginning": ShuffledAtTheBeginning,
    "workers": lambda: ShuffledAtTheEnd(workers=2, max_queue_size=3),
    "generator": generator,
    **({"tf.data": tf_dataset, "no length": of_unknown_length} if BACKEND == "tensorflow" else {}),
    **({"loader": lambda: loader(shuffle=True), "stream": stream} if BACKEND == "torch" else {}),
}


def uses(data, **options):
    model = setups.line_model(setups.dp_sgd(noise_multiplier=0.0), N)
    model.fit(data, verbose=0, num_examples=N, **options)
    return np.rint(np.ravel(model.get_weights()[0]) * BATCH), model.privacy_ledger.releases


@pytest.mark.parametrize("name", DATA_SETS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_each_pass_uses_each_row_once_and_is_one_release(name):
    shuffle = name == "order of batches"
    # As many steps as a pass has are a pass.
    steps = {"steps_per_epoch": N // BATCH} if name == "shuffled at the end" else {}
    options = {"epochs": 3, "once_per_pass": True, "shuffle": shuffle, **steps}
    used, releases = uses(DATA_SETS[name](), **options)
    if name != "generator":  # Keras repeats its beginning in each later epoch.
        np.testing.assert_array_equal(used, 3)
    assert used.max() == releases == 3


@pytest.mark.parametrize("name", [*DATA_SETS, "cut by Keras"])
def test_epochs_within_a_pass_are_refused_if_passes_are_released(name, monkeypatch):
    """Data change their order between epochs, and are read ahead: no count of epochs is enough."""
    data, cut = DATA_SETS.get(name, ShuffledAtTheEnd)(), {"steps_per_epoch": 3}
    if name == "cut by Keras":
        monkeypatch.setattr(keras.config, "max_steps_per_epoch", lambda: 3)
        cut = {}
    with pytest.raises(ValueError, match="an epoch must be a whole pass"):
        uses(data, epochs=9, once_per_pass=True, **cut)


@pytest.mark.parametrize("name", DATA_SETS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_without_the_word_of_the_user_a_row_is_in_no_more_steps_than_are_counted(name):
    used, releases = uses(DATA_SETS[name](), epochs=9, steps_per_epoch=3)
    assert used.max() <= releases


@pytest.mark.parametrize("steps_per_epoch", [3, 8, 11])
@pytest.mark.parametrize("mode", setups.COMPILED)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_cut_epochs_of_shuffled_arrays_count_each_started_pass(steps_per_epoch, mode):
    model = setups.line_model(setups.dp_sgd(noise_multiplier=0.0), N, **setups.MODES[mode])
    options = {"epochs": 9, "steps_per_epoch": steps_per_epoch, "sampling": "shuffle"}
    model.fit(*ROWS, BATCH, verbose=0, **options)
    used = np.rint(np.ravel(model.get_weights()[0]) * BATCH)
    assert used.max() == model.privacy_ledger.releases == -(-model.privacy_ledger.steps // 8)


@pytest.mark.parametrize("mode", setups.COMPILED)
def test_where_the_noise_changes_within_a_pass_each_step_is_a_release(mode):
    """What is left of the pass and the next one show rows twice."""
    schedule = ka.schedules.PiecewiseConstant([4.0, 2.0, 2.0, 1.0, 1.0])
    model = setups.line_model(setups.dp_sgd(1e6, schedule), N, **setups.MODES[mode])
    counted = {"sampling": "shuffle", "epochs": 5, "steps_per_epoch": N // BATCH // 2}
    model.fit(*ROWS, BATCH, verbose=0, **counted)
    half = N // BATCH // 2
    found = [(row.noise_multiplier, row.steps, row.releases) for row in model.privacy_ledger]
    assert found == [(4.0, half, 1), (2.0, 2 * half, 2 * half), (1.0, 2 * half, 2 * half)]
    planned = ka.accounting.compute_epsilon(schedule, N, BATCH, delta=1e-5, **counted)
    assert model.privacy_spent(1e-5).epsilon == pytest.approx(planned, rel=1e-6)


REPEATING = {
    "replacement": lambda data: data.RandomSampler(range(N), replacement=True),
    "few draws with replacement": lambda data: data.RandomSampler(range(N), True, 2),
    "weights": lambda data: data.WeightedRandomSampler([1.0] * N, N),
    "a row twice in a batch": lambda data: [0, *range(N - 1)],
}
REPEATING_IN_A_PASS = {
    "more draws than rows": lambda data: data.RandomSampler(range(N), num_samples=N + 1),
    "a row in two batches": lambda data: [*range(N - 1), 0],
}


def loader_of(sampler, in_batches):
    def batches(data):
        return data.BatchSampler(sampler(data), BATCH, drop_last=False)

    return loader(batch_sampler=batches) if in_batches else loader(sampler=sampler)


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("name", [*REPEATING, *REPEATING_IN_A_PASS])
def test_samplers_that_repeat_rows_are_refused(name, in_batches):
    if BACKEND != "torch":
        pytest.skip("what is tested is decided before any backend comes in")
    sampler = {**REPEATING, **REPEATING_IN_A_PASS}[name]
    with pytest.raises(ValueError, match=r"A pass .* must hold each example at most once"):
        uses(loader_of(sampler, in_batches), once_per_pass=True)
    if name in REPEATING:
        with pytest.raises(ValueError, match="A batch must hold each example at most once"):
            uses(loader_of(sampler, in_batches))
    else:
        used, releases = uses(loader_of(sampler, in_batches))
        assert used.max() == 2 <= releases


def test_a_pass_with_more_rows_than_examples_is_refused():
    if BACKEND != "tensorflow":
        pytest.skip("only tf.data has passes that repeat")
    with pytest.raises(ValueError, match=r"A pass .* must hold each example at most once"):
        uses(tf_dataset().repeat(2), once_per_pass=True)
    used, releases = uses(tf_dataset().repeat(2))
    assert used.max() == 2 <= releases


class WithoutEnd(Rows):
    num_batches = None


# The first two have an end, so that the test ends if nothing is refused.
TOO_LONG = {
    "generator": lambda: itertools.chain(generator(), generator()),
    **({"stream": lambda: stream(passes=2)} if BACKEND == "torch" else {}),
    "PyDataset": WithoutEnd,
    **({"tf.data": lambda: tf_dataset().repeat()} if BACKEND == "tensorflow" else {}),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_pass_that_is_too_long_shows_no_row_twice(name):
    model = setups.line_model(setups.dp_sgd(noise_multiplier=0.0), N)
    # TensorFlow wraps what a generator raises into an error of its own.
    with pytest.raises(Exception, match=r"A pass .* must hold each example at most once"):
        model.fit(TOO_LONG[name](), verbose=0, num_examples=N, once_per_pass=True)
    used = np.rint(np.ravel(model.get_weights()[0]) * BATCH)
    assert used.max() <= model.privacy_ledger.releases <= 1
