"""Times training on examples that are read when they are drawn, beside arrays in memory.

    KERAS_BACKEND=torch python benchmarks/sources/measure.py throughput
    KERAS_BACKEND=tensorflow python benchmarks/sources/measure.py images

`throughput`: steps a second on rows of 3 KB in batches of 256, from arrays in memory, from a
memory-mapped file and from a source with a function of each row, with 0, 1 and 2 workers, in
random order.
`images`: images a second from a folder of 20,000 JPEGs of 320 x 320 pixels, read as 96 x 96, beside
`keras.utils.image_dataset_from_directory` with the same plain Keras model (needs TensorFlow).

Prints Markdown. Files are made in `--folder`, and are made anew if they are missing.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

ROW = (32, 32, 3)  # uint8, 3 KB
BATCH_SIZE = 256
STEPS, REPEATS = 100, 5
NUM_IMAGES, IMAGE_SIZE, STORED_SIZE = 20_000, 96, 320
IMAGE_BATCH = 64


def dense_model(private=True):
    """Return a compiled network that computes little beside reading."""
    import keras

    import keras_adaclip as ka

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input(ROW),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
    return compiled(ka.PrivateSequential(layers) if private else keras.Sequential(layers), private)


def image_model(private):
    """Return a compiled network that computes little beside reading."""
    import keras

    import keras_adaclip as ka

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.AveragePooling2D(4),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
    return compiled(ka.PrivateSequential(layers) if private else keras.Sequential(layers), private)


def compiled(model, private):
    """Return the model, compiled with a private or a plain optimizer."""
    import keras

    import keras_adaclip as ka

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0) if private else "sgd"
    model.compile(optimizer, loss=loss)
    return model


class Times:
    """Makes a callback that takes the time of the steps after the first few."""

    def __init__(self, skipped=5):
        import keras

        self.began, self.ended, self.count = None, None, 0

        def step(batch, logs=None):
            self.count += 1
            self.ended = time.perf_counter()
            if self.count == skipped:
                self.began = self.ended

        self.skipped = skipped
        self.callback = keras.callbacks.LambdaCallback(on_train_batch_end=step)

    @property
    def steps_a_second(self):
        """The steps a second after those that are skipped."""
        return (self.count - self.skipped) / (self.ended - self.began)


def throughput(folder):
    """Print steps a second by the kind of data."""
    import keras_adaclip as ka

    num_rows = 32_000
    memory = np.random.default_rng(0).integers(0, 256, (num_rows, *ROW), "uint8")
    labels = np.zeros(num_rows, "int8")
    path = folder / "random.npy"
    np.save(path, memory)
    mapped = np.load(path, mmap_mode="r")
    size = {"expected_batch_size": BATCH_SIZE}

    def example(row):
        """Return a row with a label."""
        return row, 0

    make = {
        "arrays in memory": lambda: ka.sampling.PoissonDataset(memory, labels, **size),
        "arrays, x mapped": lambda: ka.sampling.PoissonDataset(mapped, labels, **size),
    }
    for workers in (0, 1, 2):
        make[f"source, mapped, {workers} workers"] = lambda workers=workers: (
            ka.sampling.PoissonDataset.from_source(mapped, map=example, workers=workers, **size)
        )
    found = {name: [] for name in make}
    models = {name: dense_model() for name in make}
    order = np.random.default_rng(1)
    for _ in range(REPEATS):
        for name in order.permutation(list(make)).tolist():
            times = Times()
            callbacks = [times.callback]
            models[name].fit(make[name](), steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
            found[name].append(times.steps_a_second)
    medians = {name: statistics.median(each) for name, each in found.items()}
    print("| data | steps a second | of arrays in memory |\n| --- | --- | --- |")
    for name, median in medians.items():
        print(f"| {name} | {median:.1f} | {median / medians['arrays in memory']:.2f} |")


def make_images(folder):
    """Write JPEGs of smooth random pictures into ten folders, and return their folder."""
    from PIL import Image

    folder = folder / f"jpegs-{NUM_IMAGES}"
    rng = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        path = folder / f"class-{number % 10}" / f"{number}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            small = rng.integers(0, 256, (12, 12, 3), "uint8")
            picture = Image.fromarray(small).resize((STORED_SIZE, STORED_SIZE), Image.BICUBIC)
            picture.save(path, quality=90)
    return folder


def images(folder):
    """Print images a second of plain Keras and of private training."""
    import keras

    import keras_adaclip as ka

    folder = make_images(folder)
    size = (IMAGE_SIZE, IMAGE_SIZE)
    options = {"image_size": size, "batch_size": IMAGE_BATCH, "verbose": False}
    directory = keras.utils.image_dataset_from_directory(folder, **options)
    source = ka.sampling.from_folder(folder, image_size=size)

    def drawn(workers):
        """Return Poisson-sampled images that are read by some workers."""
        return ka.sampling.PoissonDataset.from_source(
            source, expected_batch_size=IMAGE_BATCH, workers=workers
        )

    ways = {"plain Keras, image_dataset_from_directory": (image_model(False), directory)}
    for workers in (0, 2):
        ways[f"private, from_folder, {workers} workers"] = (image_model(True), drawn(workers))
    found = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, (model, data) in ways.items():
            times = Times(skipped=20)
            model.fit(data, epochs=1, verbose=0, callbacks=[times.callback])
            found[name].append(times.steps_a_second * IMAGE_BATCH)
    print("| training | images a second |\n| --- | --- |")
    for name, each in found.items():
        print(f"| {name} | {statistics.median(each):,.0f} |")


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("throughput", "images"))
    folder = Path(tempfile.gettempdir()) / "keras_adaclip_sources"
    parser.add_argument("--folder", type=Path, default=folder)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{os.environ.get('KERAS_BACKEND', 'tensorflow')}, {os.cpu_count()} cores\n")
    {"throughput": throughput, "images": images}[options.what](options.folder)


if __name__ == "__main__":
    main()
