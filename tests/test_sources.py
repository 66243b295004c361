"""Sources: examples that are read by number when a step has drawn them."""

import itertools
import os
import pickle
import threading

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.sampling import (
    FixedShapeBatches,
    PoissonDataset,
    WrittenSource,
    from_folder,
    write_source,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = RNG.integers(0, 3, 60)
PAIRS = list(zip(X, Y, strict=True))
OPTIONS = {"expected_batch_size": 6, "seed": 5}


def from_source(source=PAIRS, **arguments):
    return PoissonDataset.from_source(source, **OPTIONS | arguments)


def assert_same_batches(one, other, number=8):
    for _ in range(number):
        first, second = one[0], other[0]
        keras.tree.map_structure(np.testing.assert_array_equal, first, second)
        assert first.keys() == second.keys()


class Listed:
    """A list as a source."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def dense():
    return ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(3)])


def trained(data, make=dense, epochs=2, **arguments):
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(
        ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=1.0, seed=2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(data, epochs=epochs, verbose=0, **arguments)
    return model


def assert_trains_as(sources, other, **arguments):
    expected = trained(other, **arguments)
    for data in sources:
        found = trained(data, **arguments)
        for one, same in zip(found.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(one, same, atol=1e-6)
        assert found.privacy_spent(1e-3).epsilon == expected.privacy_spent(1e-3).epsilon
        for name, values in expected.history.history.items():
            np.testing.assert_allclose(found.history.history[name], values, rtol=1e-4)


def test_a_source_trains_as_arrays_do():
    options = {"validation_data": (X[:7], Y[:7])}
    sources = [from_source(workers=workers) for workers in (0, 1, 2)]
    assert_trains_as(sources, PoissonDataset(X, Y, **OPTIONS), **options)


def test_class_weights_are_weights_of_the_examples():
    class_weight = {0: 3.0, 1: 1.0, 2: 0.25}
    weights = np.array([class_weight.get(label, 1.0) for label in Y], "float32")
    expected = trained(PoissonDataset(X, Y, weights, **OPTIONS))
    for data in (from_source(), PoissonDataset(X, Y, **OPTIONS)):
        found = trained(data, class_weight=class_weight).get_weights()
        keras.tree.map_structure(np.testing.assert_allclose, found, expected.get_weights())
    with pytest.raises(ValueError, match="not both"):
        trained(from_source([(x, y, 1.0) for x, y in PAIRS]), class_weight=class_weight)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="feeds no strings")
def test_strings_of_a_source_reach_the_model():
    def of_words():
        lookup = keras.layers.StringLookup(vocabulary=["bad", "good"], output_mode="one_hot")
        return ka.PrivateSequential(
            [keras.Input((), dtype="string"), lookup, keras.layers.Dense(3)]
        )

    words = np.array(["bad", "good", "fine"])[Y]
    pairs = [(str(word), y) for word, y in zip(words, Y, strict=True)]
    sources = [from_source(pairs, workers=workers) for workers in (0, 1)]
    assert_trains_as(sources, PoissonDataset(words, Y, **OPTIONS), make=of_words)
    model = trained(sources[0], make=of_words)
    found = model.evaluate(Listed(pairs), verbose=0)
    np.testing.assert_allclose(found, model.evaluate(words, Y, verbose=0), atol=1e-6)


def test_structures_weights_and_numbers_are_stacked():
    weights = RNG.uniform(size=60).astype("float32")
    x = {"b": X, "a": (X[:, :2], RNG.integers(0, 2, 60))}
    examples = [
        ({"b": X[i], "a": [x["a"][0][i], int(x["a"][1][i])]}, Y[i], float(weights[i]))
        for i in range(60)
    ]
    arrays = PoissonDataset(x, Y, weights, **OPTIONS)
    assert_same_batches(from_source(examples), arrays)
    empty = from_source(examples).take(np.zeros(0, np.int64))
    np.testing.assert_array_equal(empty["x"]["b"], np.zeros((1, 4)))
    np.testing.assert_array_equal(empty["mask"], [False])


def test_lists_of_numbers_are_arrays_and_wider_types_hold_narrower_ones():
    data = from_source([(list(map(float, x)), [0, 1]) for x in X])
    np.testing.assert_allclose(data.take(np.arange(60))["x"], X, rtol=1e-6)
    np.testing.assert_array_equal(data.take(np.arange(1))["y"], [[0, 1]])
    data = from_source([np.uint16(300), np.uint8(7)], expected_batch_size=1)
    np.testing.assert_array_equal(data.take(np.arange(2))["x"], [300, 7])


def test_workers_read_side_by_side():
    """Two readers wait for each other, so one alone would not finish."""
    together = threading.Barrier(2, timeout=60)

    class Meeting(list):
        def __getitem__(self, index):
            if threading.current_thread() is not threading.main_thread():
                together.wait()
            return super().__getitem__(index)

    data = from_source(Meeting(PAIRS), workers=2)
    rows = np.arange(4)
    for read in [data.reading(rows), data.reading(rows)]:
        np.testing.assert_array_equal(read()["x"], X[:4])


def h5py_source(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = X
    return h5py.File(folder / "x.h5")["x"], lambda x: x


def memory_mapped_source(folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r"), None


def array_record_source(folder):
    writer = pytest.importorskip("array_record.python.array_record_module")
    sources = pytest.importorskip("array_record.python.array_record_data_source")
    file = writer.ArrayRecordWriter(str(folder / "x"), "group_size:1")
    for row in X:
        file.write(row.tobytes())
    file.close()
    return sources.ArrayRecordDataSource(str(folder / "x")), lambda r: np.frombuffer(r, "float32")


def library_source(name, make, function=None):
    return lambda folder: (make(pytest.importorskip(name)), function)


SOURCES = {
    "h5py": h5py_source,
    "numpy": memory_mapped_source,
    "array_record": array_record_source,
    "torch": library_source(
        "torch", lambda torch: torch.utils.data.TensorDataset(torch.tensor(X)), lambda row: row[0]
    ),
    "datasets": library_source(
        "datasets",
        lambda datasets: datasets.Dataset.from_dict({"x": X}),
        lambda row: np.asarray(row["x"], "float32"),
    ),
    "grain": library_source("grain", lambda grain: grain.MapDataset.source(X)),
    "zarr": library_source("zarr", lambda zarr: zarr.array(X)),
    "written": lambda folder: (write_source(iter(X), folder / "written"), None),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_of_many_libraries_are_read(name, tmp_path):
    source, function = SOURCES[name](tmp_path)
    expected = PoissonDataset(X, **OPTIONS)
    assert_same_batches(from_source(source, map=function), expected)


def test_rows_of_a_memory_mapped_array_are_those_in_memory(tmp_path):
    mapped, _ = memory_mapped_source(tmp_path)
    assert_same_batches(PoissonDataset(mapped, Y, **OPTIONS), PoissonDataset(X, Y, **OPTIONS))


def test_images_in_folders_are_read_and_resized(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(["b", "a"]):
        (tmp_path / name).mkdir()
        for file in ("0.png", "1.jpg"):
            image.new("RGB", (8, 6), (100 * number, 0, 0)).save(tmp_path / name / file)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    for hidden in (tmp_path / ".cache", tmp_path / "a" / ".cache"):
        hidden.mkdir()
        image.new("RGB", (8, 6)).save(hidden / "0.png")
    (tmp_path / "b" / "folder.png").mkdir()
    images = from_folder(tmp_path)
    assert (len(images), images.class_names) == (4, ["a", "b"])
    pixels, label = images[0]
    assert (pixels.shape, pixels.dtype, label) == ((6, 8, 3), np.uint8, 0)
    assert pixels[0, 0].tolist() == [100, 0, 0]
    gray = from_folder(tmp_path, image_size=(4, 5), color_mode="grayscale")
    assert gray[3][0].shape == (4, 5, 1)
    assert gray[3][1] == 1
    assert from_source(images, expected_batch_size=2).take(np.arange(4))["x"].shape == (4, 6, 8, 3)
    with pytest.raises(ValueError, match="one folder of images for each class"):
        from_folder(tmp_path / "missing")
    with pytest.raises(TypeError, match="a pair of integers"):
        from_folder(tmp_path, image_size=224)


def test_written_examples_are_opened_again_and_sent_to_processes(tmp_path):
    examples = [({"b": x, "a": (x[:1], int(y))}, y, 0.5) for x, y in PAIRS]
    write_source((each for each in examples), tmp_path / "files")
    opened = WrittenSource(tmp_path / "files")
    for source in (opened, pickle.loads(pickle.dumps(opened))):
        assert len(source) == 60
        assert_same_batches(from_source(source), from_source(examples))
    with pytest.raises(FileExistsError, match="already holds"):
        write_source(examples, tmp_path / "files")
    for wrong, message in (("text", "strings|Object dtype"), ({1: 2.0}, "keys of dicts")):
        with pytest.raises(TypeError, match=message):
            write_source([wrong] * 2, tmp_path / "wrong")


def test_interrupted_writing_leaves_nothing_to_open(tmp_path):
    def broken():
        yield from PAIRS
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_source(broken(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"examples\.h5"):
        WrittenSource(tmp_path)
    write_source(PAIRS, tmp_path)
    with open(tmp_path / "examples.h5", "r+b") as file:
        file.truncate(3000)
    with pytest.raises(OSError, match="truncated"):
        WrittenSource(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_example_is_named_and_the_steps_that_ran_stay(workers):
    model, left = dense(), itertools.count(60, -1)

    class Failing(list):
        def __getitem__(self, index):
            if next(left) <= 0:
                raise OSError("bad block")
            return super().__getitem__(index)

    def make():
        return model

    with pytest.raises(Exception, match=r"(?s)Example \d+ of the source.*OSError: bad block"):
        trained(from_source(Failing(PAIRS), workers=workers), make, epochs=4)
    assert 0 < model.optimizer.ledger.steps < 40


WRONG = [
    ([X[0], X[1][:3]], "shape"),
    ([np.int32(1), np.float32(0.5)], "dtype"),
    ([{"a": X[0]}, {"b": X[0]}], "structure"),
    ([(X[0], 1), (X[0],)], "parts"),
    ([1.0, "2"], "dtype"),
    ([np.uint8(1), np.uint16(300)], "dtype"),
    ([np.float16(1), np.float32(0.1)], "dtype"),
    ([1.0, None], "is None"),
]


@pytest.mark.parametrize(("source", "what"), WRONG)
def test_an_example_that_differs_from_the_first_is_named(source, what):
    data = from_source(source, expected_batch_size=1)
    with pytest.raises(ValueError, match=f"(?s)Example 1 .*{what}"):
        data.take(np.arange(2))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (iter(PAIRS), TypeError, "write_source"),
        (itertools.count(), TypeError, "write_source"),
        ({0: X[0]}, TypeError, "one example for each number"),
        ([], ValueError, "at least one example"),
        ([(1, 2, 3, 4)], ValueError, "tuple of 4"),
        ([object()], TypeError, "not of numbers"),
        ([np.datetime64("2026-11-26")], TypeError, "not of numbers"),
        ([(None, 1)], ValueError, "is None"),
        (PoissonDataset(X, expected_batch_size=6), TypeError, "holds batches"),
    ],
)
def test_sources_that_cannot_be_used_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        from_source(source, expected_batch_size=1)


def test_fit_evaluate_and_predict_take_a_source_as_arrays(tmp_path):
    weights, source = np.arange(60, dtype="float32") % 3, write_source(PAIRS, tmp_path)
    options = {"batch_size": 6, "validation_data": (X, Y), "validation_batch_size": 7}
    arrays = trained(X, y=Y, **options)
    model = trained(source, **options | {"validation_data": source})
    assert [*map(str, model.privacy_ledger)] == [*map(str, arrays.privacy_ledger)]
    for name, values in arrays.history.history.items():
        np.testing.assert_allclose(model.history.history[name], values, rtol=1e-5)
    weighted = Listed([*zip(X, Y, weights, strict=True)])
    for given, parts in ((source, (X, Y)), (weighted, (X, Y, weights))):
        keys = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
        for size in (None, 7):
            found = model.evaluate(given, batch_size=size, verbose=0)
            np.testing.assert_allclose(
                found, model.evaluate(**keys, batch_size=size, verbose=0), atol=1e-6
            )
            predicted = model.predict(given, size, verbose=0)
            np.testing.assert_allclose(predicted, model.predict(X, size, verbose=0), atol=1e-6)


def test_a_plan_chooses_the_batches_of_a_source(tmp_path):
    model, same, source = dense(), dense(), write_source(PAIRS, tmp_path)
    for each, data in ((model, {"x": source, "validation_data": source}), (same, {"x": X, "y": Y})):
        each.compile(ka.optimizers.AutoDPOptimizer(3.0), loss="sparse_categorical_crossentropy")
        each.fit(**data, verbose=0)
    assert model.optimizer.plan == same.optimizer.plan
    assert [*map(str, model.privacy_ledger)] == [*map(str, same.privacy_ledger)]


def test_arguments_that_a_source_decides_are_refused_and_its_validation_is_tried(tmp_path):
    source = write_source(PAIRS, tmp_path)
    wide = write_source([(x[:2], y) for x, y in PAIRS], tmp_path / "wide")
    for name, value in {"validation_split": 0.1, "y": Y, "sampling": "shuffle"}.items():
        with pytest.raises(ValueError, match=f"`{name}`"):
            trained(source, **{name: value})
    with pytest.raises(ValueError, match="first batch of `validation_data`"):
        trained(source, validation_data=wide)


def test_a_source_that_changes_its_length_is_refused_before_training():
    source = list(PAIRS)
    data = from_source(source)
    source.append(PAIRS[0])
    with pytest.raises(ValueError, match="changed its length"):
        trained(data)


def test_reading_ahead_ends_with_the_epoch_and_starts_anew_in_a_forked_process(monkeypatch):
    data = from_source(workers=2)
    batches = FixedShapeBatches(data, 3, ())
    drawn = []
    monkeypatch.setattr(
        type(data), "draw", lambda self: drawn.append(len(drawn)) or np.array([len(drawn)])
    )
    for index in range(3):
        np.testing.assert_array_equal(batches[index]["x"], X[[index + 1]])
    assert len(drawn) == 3
    batches[0]
    assert len(drawn) == 6
    monkeypatch.setattr(os, "getpid", lambda: -1)
    np.testing.assert_array_equal(batches[1]["x"], X[[7]])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"map": 3}, TypeError), ({"workers": -1}, ValueError), ({"workers": 0.5}, TypeError)],
)
def test_arguments_out_of_range_are_refused(arguments, error):
    with pytest.raises(error):
        from_source(**arguments)
