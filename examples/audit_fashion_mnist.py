"""An audit of private training: is epsilon as small as the accountant says?

Trains the network of `fashion_mnist.py` with canaries, each of which is in training or not by the
toss of a coin. The number of coins that an attacker guesses bounds epsilon from below; the
accountant bounds it from above.

    python examples/audit_fashion_mnist.py --runs 3
    python examples/audit_fashion_mnist.py --kind loss
    python examples/audit_fashion_mnist.py --fault half-noise

The first command adds 1,000 gradients to the steps of a run on 6,000 images, and the attacker sees
every step. With `--kind loss`, all of 2,000 examples are canaries, random images with random
labels, and the attacker sees their losses after training (Steinke et al. 2023). The third command
breaks the training on purpose, to show that the lower bound then exceeds the accountant's.
"""

import argparse
import contextlib
from collections.abc import Iterator
from unittest import mock

import keras
from keras import ops

import keras_adaclip as ka
from data import LabelledData, load_fashion_mnist
from fashion_mnist import build_model
from keras_adaclip import noise
from keras_adaclip.clipping import Clipper

FAULTS = ("no-noise", "half-noise", "no-clipping")


@contextlib.contextmanager
def broken(fault: str | None) -> Iterator[None]:
    """Break the noise or the clip factors of the steps in the context."""
    add_noise = noise.add_noise

    def with_half(tensors, stddevs, *args, **kwargs):
        return add_noise(tensors, [0.5 * each for each in stddevs], *args, **kwargs)

    def of_one(self, norms, finite):
        return ops.where(finite[:, None], ops.ones_like(norms), 0.0)

    with contextlib.ExitStack() as stack:
        if fault == "half-noise":
            stack.enter_context(mock.patch.object(noise, "add_noise", with_half))
        if fault == "no-clipping":
            stack.enter_context(mock.patch.object(Clipper, "factors", of_one))
        yield


def compiled_model(noise_multiplier: float, learning_rate: float) -> keras.Model:
    """Return the network, ready for private training."""
    model = build_model()
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(learning_rate), clipping=1.0, noise_multiplier=noise_multiplier
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def audited(
    data: LabelledData, noise_multiplier: float, options: argparse.Namespace
) -> ka.audit.OneRunAudit:
    """Train with canaries and audit the run."""
    x, y = data.x_train[: options.examples], data.y_train[: options.examples]
    sizes = {"batch_size": options.batch_size, "epochs": options.epochs, "verbose": 0}
    if options.kind == "loss":
        return ka.audit.one_run(
            lambda: compiled_model(noise_multiplier, options.learning_rate),
            x,
            y,
            num_canaries=options.examples,
            delta=options.delta,
            **sizes,
        )
    audit = ka.callbacks.AuditCallback(
        kind="gradient",
        num_canaries=options.canaries,
        delta=options.delta,
        frequency=options.epochs,
    )
    model = compiled_model(noise_multiplier, options.learning_rate)
    model.fit(x, y, callbacks=[audit], **sizes)
    return audit.result


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("gradient", "loss"), default="gradient")
    parser.add_argument("--fault", choices=FAULTS, help="to break on purpose")
    parser.add_argument("--runs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--epsilon", type=float, default=3.0, help="to calibrate for (%(default)s)")
    parser.add_argument("--delta", type=float, default=1e-5, help="(%(default)s)")
    parser.add_argument("--canaries", type=int, default=1000, help="gradients (%(default)s)")
    parser.add_argument("--examples", type=int, help="(6000, with losses 2000, all canaries)")
    parser.add_argument("--batch-size", type=int, help="expected (95, with losses 100)")
    parser.add_argument("--epochs", type=int, help="(5, with losses 60)")
    parser.add_argument("--learning-rate", type=float, help="(0.5, with losses 2.0)")
    parser.add_argument("--smoke", action="store_true", help="a few steps on a little data")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("argument --runs: must be positive")
    names = ("examples", "batch_size", "epochs", "learning_rate")
    usual = (6000, 95, 5, 0.5) if options.kind == "gradient" else (2000, 100, 60, 2.0)
    for name, value in zip(names, usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.smoke:
        options.examples, options.batch_size, options.epochs, options.canaries = 64, 16, 1, 100
    return options


def main() -> None:
    """Calibrate the noise, audit the runs, and report."""
    options = parse_options()
    data = load_fashion_mnist()
    print(f"Data: {data.source}; backend: {keras.backend.backend()}")
    # The coins leave half of the canaries out, as everybody knows.
    num_examples = options.examples // (2 if options.kind == "loss" else 1)
    size = {"num_examples": num_examples, "batch_size": options.batch_size}
    noise_multiplier = ka.accounting.calibrate_noise_multiplier(
        options.epsilon, options.delta, epochs=options.epochs, **size
    )
    claimed = ka.accounting.compute_epsilon(
        noise_multiplier, delta=options.delta, epochs=options.epochs, **size
    )
    used = 0.0 if options.fault == "no-noise" else noise_multiplier
    print(
        f"{options.examples:,} examples, expected batch {options.batch_size}, {options.epochs} "
        f"epochs, delta {options.delta:g}. Noise multiplier {noise_multiplier:.3f} gives epsilon "
        f"{claimed:.3f}. Broken on purpose: {options.fault or 'nothing'}."
    )
    bounds = []
    for number in range(options.runs):
        with broken(options.fault):
            found = audited(data, used, options)
        bound = found.epsilon_lower_bound
        words = f"Run {number + 1}: epsilon is at least {bound:.3f} (95%)"
        if options.kind == "gradient":
            bound = found.family_lower_bound
            words += f", and {bound:.3f} within the family of the ledger's mechanism"
        bounds.append(bound)
        print(words, flush=True)
    num_above = sum(bound > claimed for bound in bounds)
    print(
        f"Mean {sum(bounds) / len(bounds):.2f}; {num_above} of {options.runs} bounds lie above "
        f"epsilon {claimed:.3f}."
    )


if __name__ == "__main__":
    main()
