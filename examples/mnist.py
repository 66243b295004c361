"""Private classification of handwritten digits: MNIST at epsilon 2.93.

The network and the budget of Lin et al. 2022, by DP-SGD (Abadi et al. 2016): each step draws images
at random, clips the gradient of each one to a norm, and adds noise to their sum.

    python examples/mnist.py

**Expected**: this script was not run on the real MNIST here, only with `--smoke`, on images made
up on the spot. Lin et al. report, in table 2 at epsilon 2.93, test accuracies of 97.2% with a fixed
norm, 94.0% with quantile clipping, 97.7% with a power decay and 98.1% with transferred norms. On
Fashion-MNIST, which has as many images of the same size, the same training takes a minute on two
cores.

**Data**: Keras's copy, TensorFlow Datasets or a folder of your own; see `docs/examples.md`.
"""

import time

import keras

import keras_adaclip as ka
from comparison.networks import ACTIVATIONS, NETWORKS
from keras_adaclip.datasets import ImageData, load_mnist, make_up_images
from private_classification import (
    TUNED_FOR_TABLE_B1,
    Task,
    callbacks,
    loaded,
    parse_options,
    private_optimizer,
    report,
)

"""
## What to choose

Epsilon and batch size are the paper's. Its delta, one over the number of images, is what publishing
an image outright would have; ours is smaller. Learning rates, epochs and norms are those that
suited the same network on Fashion-MNIST (`docs/accuracy.md`): the paper's own, learning rate 1 and
the norms of its table D1, did not come near its figures there.
"""

TASK = Task(
    title="MNIST",
    epsilon=2.93,
    delta=1e-5,
    batch_size=1024,
    trainings=TUNED_FOR_TABLE_B1,
    networks=("b1", "b3"),
)

"""
## The data

60,000 training and 10,000 test images of 28x28 pixels, divided by 255: a constant, so nothing of
the images goes into it. The test images are taken to be public.
"""


def load(is_smoke: bool) -> ImageData:
    """The digits, or made-up images of their shape."""
    return make_up_images("MNIST", (28, 28, 1)) if is_smoke else load_mnist()


"""
## The network

Table B1 of the paper: two convolutions, and a hidden layer of 32 units. Table B3, which the paper
calls smaller, is `--network b3`. With tanh, since bounded activations learn best under noise.
"""


def build_model(network: str) -> keras.Model:
    """A network of Lin et al. 2022."""
    layers = NETWORKS[network](ACTIVATIONS["tanh"])
    return ka.PrivateSequential([keras.Input((28, 28, 1)), *layers], name="mnist_cnn")


"""
## Compile, fit, report

The privacy is in the optimizer: `private_optimizer` finds the noise with which all epochs together
cost just epsilon, and wraps SGD in a `ka.optimizers.DPOptimizer` with that noise and the clipping
of the command line. `--clipping transfer` takes norms that were found on other, public images: the
paper finds those for MNIST on Fashion-MNIST, as `examples/tuning/greedy_schedule.py` can.
"""


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    data = loaded(load, options)

    started = time.perf_counter()
    model = build_model(options.network)
    model.compile(
        optimizer=private_optimizer(
            keras.optimizers.SGD(options.learning_rate, momentum=options.momentum),
            options,
            num_examples=len(data.x_train),
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    test_data = (data.x_test, data.y_test)
    history = model.fit(
        data.x_train,
        data.y_train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test_data,
        callbacks=callbacks(options),
        verbose=options.verbose,
    )
    report(model, history, test_data, options, time.perf_counter() - started)


if __name__ == "__main__":
    main()
