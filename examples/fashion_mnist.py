"""Private image classification on Fashion-MNIST, the clipping norm looking after itself.

Trains the small convolutional network of Lin et al. 2022 (table B1) with DP-SGD: Poisson-sampled
batches, each example's gradient clipped to a private estimate of a quantile of the gradient norms
(Andrew et al. 2021), and noise calibrated so that the whole run costs epsilon 3 at delta 1e-5.

    python examples/fashion_mnist.py

takes about one minute on two cores and ends with the test accuracy, the privacy statement and
`fashion_mnist.png`, which shows accuracy, epsilon and clipping norm by epoch.
"""

import argparse
import time
from pathlib import Path

import keras

import keras_adaclip as ka
from keras_adaclip.datasets import ImageData, load_fashion_mnist


def build_model() -> keras.Model:
    """The network of table B1; its last layer has one unit a class."""
    return ka.PrivateSequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="tanh"),
            keras.layers.MaxPooling2D(2, strides=1),
            keras.layers.Conv2D(32, 3, padding="same", activation="tanh"),
            keras.layers.MaxPooling2D(2, strides=1),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(10),
        ],
        name="fashion_cnn",
    )


def train(
    data: ImageData, options: argparse.Namespace
) -> tuple[keras.Model, keras.callbacks.History]:
    """Calibrates the noise, compiles and trains."""
    num_examples = len(data.x_train)
    batch_size = min(options.batch_size, num_examples // 4)
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon, options.delta, num_examples, batch_size, epochs=options.epochs
    )
    print(
        f"Noise multiplier {noise_multiplier:.3f} for epsilon {options.epsilon:g} at delta "
        f"{options.delta:g}: {options.epochs} epochs, expected batch {batch_size}"
    )
    model = build_model()
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(options.learning_rate, momentum=options.momentum),
            clipping=ka.clipping.QuantileClipping(target_quantile=options.quantile),
            noise_multiplier=noise_multiplier,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        data.x_train,
        data.y_train,
        batch_size=batch_size,
        epochs=options.epochs,
        validation_data=(data.x_test, data.y_test),
        callbacks=[
            ka.callbacks.PrivacyCallback(delta=options.delta, target_epsilon=options.epsilon),
            ka.callbacks.ClippingMonitor(),
        ],
        verbose=options.verbose,
    )
    return model, history


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (%(default)s)")
    parser.add_argument("--delta", type=float, default=1e-5, help="its delta (%(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1024, help="expected (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="(%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="(%(default)s)")
    parser.add_argument("--quantile", type=float, default=0.7, help="(%(default)s)")
    parser.add_argument("--seed", type=int, help="of the initial weights; noise is never seeded")
    parser.add_argument("--output", type=Path, default=Path("fashion_mnist.png"))
    parser.add_argument("--verbose", default="auto", help="as in Keras's `fit` (%(default)s)")
    parser.add_argument("--smoke", action="store_true", help="a few steps on a little data")
    options = parser.parse_args()
    options.verbose = int(options.verbose) if options.verbose.isdigit() else options.verbose
    if options.smoke:
        options.epochs, options.batch_size = 2, 64
    return options


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options()
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    data = load_fashion_mnist()
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    if options.smoke:
        data = ImageData(
            data.x_train[:512],
            data.y_train[:512],
            data.x_test[:256],
            data.y_test[:256],
            data.source,
        )
    started = time.perf_counter()
    model, history = train(data, options)
    seconds = time.perf_counter() - started
    accuracy = model.evaluate(data.x_test, data.y_test, verbose=0, return_dict=True)["accuracy"]
    print(f"\nTest accuracy {accuracy:.2%} after {seconds:.0f} s of training.")
    print(model.privacy_spent(options.delta))
    ka.plots.history(history, options.output, title="Private training on Fashion-MNIST")
    print(f"Figure: {options.output}")


if __name__ == "__main__":
    main()
