"""The names that pages assume, with small models, and made-up data in place of Keras's."""

import h5py
import keras
import numpy as np

import keras_adaclip as ka

NUM_CLASSES = 10


def images(num_examples, seed=0):
    """Random images of the shape of Fashion-MNIST's, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (num_examples, 28, 28), dtype=np.uint8)
    return x, rng.integers(0, NUM_CLASSES, num_examples).astype(np.uint8)


def make_small(monkeypatch, num_examples=2_048):
    """Give Fashion-MNIST few rows, and `fit` of a private model one epoch."""

    def load_data():
        return images(num_examples), images(256, seed=1)

    owner = next(each for each in ka.PrivateModel.__mro__ if "fit" in vars(each))
    fit = owner.fit

    def fit_one_epoch(model, *args, epochs=1, **kwargs):
        return fit(model, *args, epochs=1, **kwargs | {"verbose": 0})

    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", load_data)
    monkeypatch.setattr(owner, "fit", fit_one_epoch)


def model_and_data(num_examples=8_192, activation="softmax"):
    """`keras_model`, `x`, `y`, `x_val` and `y_val`, for batches of 1,024."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_examples, 4)).astype("float32")
    y = rng.integers(0, 3, num_examples)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation=activation)]
    names = {"keras_model": keras.Sequential(layers), "x": x, "y": y}
    return names | {"x_val": x[:64], "y_val": y[:64]}


def trained_model():
    """`model`, saved as `model.keras` in the working directory."""
    data = model_and_data(256)
    model = ka.privatize(data["keras_model"])
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.1)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(data["x"], data["y"], batch_size=32)
    model.save("model.keras")
    return {"ka": ka, "model": model}


def images_to_audit():
    """Data for an audit, training and test data, and a compiled `model`."""
    (x, y), (x_test, y_test) = (images(1_024), images(256, seed=1))
    x, x_test = x[..., None] / 255.0, x_test[..., None] / 255.0
    dense = keras.layers.Dense(NUM_CLASSES)
    model = ka.PrivateSequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), dense])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), loss=loss)
    names = {"keras": keras, "ka": ka, "x": x, "y": y, "model": model}
    return names | {"x_train": x[:256], "y_train": y[:256], "x_test": x_test, "y_test": y_test}


def benchmark_network():
    """`model`: the network `cnn-256` of `benchmarks/speed/suite.py`."""
    layers = keras.layers
    model = ka.PrivateSequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="conv2d"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2d_1"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="relu", name="dense"),
            layers.Dense(NUM_CLASSES, name="dense_1"),
        ]
    )
    assert model.count_params() == 152_618  # as that file has it
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"ka": ka, "model": model}


def file_of_clients():
    """No names, but `fed_emnist_train.h5` in the working directory."""
    with h5py.File("fed_emnist_train.h5", "w") as file:
        file["examples/f0000_14/pixels"] = np.ones((2, 28, 28), np.float32)
        file["examples/f0000_14/label"] = np.array([3, 7])
    return {}
