"""An audit of private training: is epsilon as small as the accountant says?

Trains the network of `fashion_mnist.py` on a few thousand canaries: random images with random
labels. A coin decides for each whether it is in the training data. The number of coins that the
final losses reveal bounds epsilon from below (Steinke et al. 2023); the accountant bounds it from
above.

    python examples/audit_fashion_mnist.py --runs 3
    python examples/audit_fashion_mnist.py --without-noise

The second command trains without noise, to show that the lower bound then exceeds the epsilon that
the noise would have given. A run takes half a minute on two cores.
"""

import argparse

import keras

import keras_adaclip as ka
from data import LabelledData, load_fashion_mnist
from fashion_mnist import build_model


def audited(
    data: LabelledData, noise_multiplier: float, options: argparse.Namespace
) -> ka.audit.OneRunAudit:
    """Train on canaries alone and audit the run."""

    def compiled_model() -> keras.Model:
        model = build_model()
        model.compile(
            optimizer=ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(options.learning_rate),
                clipping=1.0,
                noise_multiplier=noise_multiplier,
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    return ka.audit.one_run(
        compiled_model,
        data.x_train[: options.examples],
        data.y_train[: options.examples],
        num_canaries=options.examples,
        batch_size=options.batch_size,
        epochs=options.epochs,
        delta=options.delta,
        verbose=0,
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--epsilon", type=float, default=3.0, help="to calibrate for (%(default)s)")
    parser.add_argument("--delta", type=float, default=1e-5, help="(%(default)s)")
    parser.add_argument("--examples", type=int, default=2000, help="all canaries (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=100, help="expected (%(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="(%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2.0, help="(%(default)s)")
    parser.add_argument("--without-noise", action="store_true", help="on purpose")
    parser.add_argument("--smoke", action="store_true", help="a few steps on a little data")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("argument --runs: must be positive")
    if options.smoke:
        options.examples, options.batch_size, options.epochs = 64, 16, 1
    return options


def main() -> None:
    """Calibrate the noise, audit the runs, and report."""
    options = parse_options()
    data = load_fashion_mnist()
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    # The coins leave half of the canaries out, as everybody knows.
    size = {"num_examples": options.examples // 2, "batch_size": options.batch_size}
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon, options.delta, epochs=options.epochs, **size
    )
    claimed = ka.accounting.compute_epsilon(
        noise_multiplier, delta=options.delta, epochs=options.epochs, **size
    )
    used = 0.0 if options.without_noise else noise_multiplier
    print(
        f"{options.examples:,} canaries, expected batch {options.batch_size}, {options.epochs} "
        f"epochs, delta {options.delta:g}. Noise multiplier {noise_multiplier:.3f} gives epsilon "
        f"{claimed:.3f}; training has {used:.3f}."
    )
    num_above = 0
    for number in range(options.runs):
        found = audited(data, used, options)
        num_above += found.epsilon_lower_bound > claimed
        print(
            f"Run {number + 1}: epsilon is at least {found.epsilon_lower_bound:.3f} (95%), by "
            f"{found.num_correct} of {found.num_guesses} guesses",
            flush=True,
        )
    print(f"{num_above} of {options.runs} bounds lie above epsilon {claimed:.3f}.")


if __name__ == "__main__":
    main()
