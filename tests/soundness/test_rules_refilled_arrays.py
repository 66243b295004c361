"""Rule 29: the user's code may fill the same arrays in each call, and examples stay their own.

A reference that is kept while the user's code runs again shows the data of a later example, so that
one example would be in the contributions of others.
"""

import sys
import threading

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.sampling import PoissonDataset, write_source
from tests.soundness.setups import MODES, dp_sgd, flat_weights, line_model

VALUES = np.arange(1.0, 101.0, dtype="float32")
CLIENTS = (1, 2, 3, 4)


class Refilled:
    """A source that fills one array for each entry."""

    def __init__(self):
        self.array = np.zeros(3, "float32")

    def __len__(self):
        return len(VALUES)

    def __getitem__(self, number):
        self.array[:] = VALUES[number]
        return self.array


class InStructures(Refilled):
    def __getitem__(self, number):
        array = super().__getitem__(number)
        return {"a": array, "b": (array[:1], array)}, array[0:1]


class Image:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Objects(Refilled):
    def __getitem__(self, number):
        return Image(super().__getitem__(number))


class Tensors(Refilled):
    def __getitem__(self, number):
        import torch

        return torch.from_numpy(super().__getitem__(number))


def refilled():
    array = np.zeros(3, "float32")

    def fill(entry):
        array[:] = entry
        return array

    return fill


SOURCES = {
    "source": lambda _: (Refilled(), None),
    "map": lambda _: (VALUES, refilled()),
    "structures": lambda _: (InStructures(), None),
    "objects": lambda _: (Objects(), None),
    "tensors": lambda _: (Tensors(), None),
    "written": lambda path: (write_source(map(refilled(), VALUES), path / "written"), None),
}


@pytest.mark.parametrize("name", SOURCES)
def test_examples_of_a_source_are_copied_one_by_one(name, tmp_path):
    source, function = SOURCES[name](tmp_path)
    data = PoissonDataset.from_source(source, expected_batch_size=50, map=function, seed=1)
    for _ in range(3):
        rows = data.draw()
        for part in keras.tree.flatten({**data.take(rows), "mask": VALUES[rows]}):
            np.testing.assert_array_equal(part.reshape(len(rows), -1)[:, 0], VALUES[rows])


class Waiting(Refilled):
    """Gives way to other threads between filling its array and returning it."""

    def __getitem__(self, number):
        found = super().__getitem__(number)
        sum(1 for _ in range(2_000))
        return found


def test_threads_take_turns_where_they_fill_the_same_arrays():
    data = PoissonDataset.from_source(Waiting(), expected_batch_size=50, workers=3, seed=1)
    drawn = [data.draw() for _ in range(20)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reading = [data.reading(rows) for rows in drawn]
        for rows, read in zip(drawn, reading, strict=True):
            np.testing.assert_array_equal(read()["x"][:, 0], VALUES[rows])
    finally:
        sys.setswitchinterval(before)


class Own(ClientData):
    client_ids = CLIENTS

    def __init__(self):
        self.read = refilled_examples(lambda client: client)

    def examples_at(self, position):
        return self.read(CLIENTS[position]), None


def refilled_examples(function):
    array = np.zeros((2, 1), "float32")

    def fill(*given):
        array[:] = function(*given)
        return array

    return fill


def mapped(clients=None):
    x = np.repeat(np.array(CLIENTS, "float32"), 2)[:, None]
    clients = clients or ClientData.from_arrays(x, None, np.repeat(CLIENTS, 2))
    fill = refilled_examples(lambda x: x)
    return clients.map(lambda x, y: (fill(x), None))


CLIENT_DATA = {
    "function": lambda: ClientData.from_function(CLIENTS, refilled_examples(lambda client: client)),
    "subset of map": lambda: mapped().subset(CLIENTS),
    "map of map": lambda: mapped(mapped()),
    "own class": Own,
}


class MeanPrediction(ka.federated.FederatedSequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred)


@pytest.mark.parametrize("name", CLIENT_DATA)
def test_examples_of_a_client_are_those_of_no_other(name):
    clients = CLIENT_DATA[name]()
    settings = FederatedSettings(client_optimizer="sgd", client_batch_size=2)
    cohorts = CohortBatches(clients, settings, seed=1, cohort_size=4, sampling="fixed")
    expected = np.repeat(CLIENTS, 2)
    joined = [cohorts.client(position, key=1).examples["x"] for position in range(4)]
    np.testing.assert_array_equal(np.ravel(joined), expected)
    np.testing.assert_array_equal(np.ravel(clients.all_examples()[0]), expected)
    np.testing.assert_array_equal(np.ravel(clients.first_examples(8)[0]), expected)
    # And so are its scores.
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = MeanPrediction([keras.Input((1,)), layer])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0))
    np.testing.assert_allclose(model.evaluate_clients(clients).values["loss"], CLIENTS)


def generator(x):
    array = np.zeros((4, 1), "float32")
    for batch in x:
        array[:] = batch
        yield array, array


class ThreadsOwn(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__(workers=2, max_queue_size=8)
        self.x, self.local, self.num_epochs = x, threading.local(), 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if not hasattr(self.local, "array"):
            self.local.array = np.zeros((4, 1), "float32")
        self.local.array[:] = self.x[index]
        return self.local.array, self.local.array

    def on_epoch_end(self):
        self.num_epochs += 1


def loader(x):
    import torch

    tensor = torch.zeros(4, 1)

    def collate(rows):
        tensor[:] = torch.as_tensor(np.array(rows))
        return tensor, tensor

    return torch.utils.data.DataLoader(list(x.reshape(-1, 1)), batch_size=4, collate_fn=collate)


@pytest.mark.parametrize("make", [generator, ThreadsOwn, loader])
def test_batches_of_a_stream_are_trained_on_as_they_were_made(make):
    """The gradients are minus the inputs, so the weight is the sum of the batches' means."""
    x = 2.0 ** np.arange(8).repeat(4).reshape(8, 4, 1)
    data = make(x.astype("float32"))
    model = line_model(dp_sgd(clipping=1e3, noise_multiplier=1e-9), **MODES.get("several", {}))
    model.fit(data, num_examples=32, steps_per_epoch=8 if make is generator else None, verbose=0)
    np.testing.assert_allclose(flat_weights(model), [255.0], rtol=1e-5)
    assert getattr(data, "num_epochs", 1) > 0
