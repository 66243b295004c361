"""JAX by hand: a compiled `lax.scan` over one client's batches, in a Python loop over clients."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import speed_path  # noqa: F401
from framework import Train
from jax import numpy as jnp
from peers.jax_models import Weights, initialized, logits
from workloads import CLIENT_LEARNING_RATE, NUM_CLASSES, SERVER_LEARNING_RATE, Workload

Array = Any


def network(workload: Workload) -> tuple[list[Array], Callable[[Sequence[Array], Array], Array]]:
    """The weights of the model, and the function of them and of a batch.

    Args:
        workload: whose model.
    """
    units = workload.about.units
    sample = np.zeros((1, *workload.about.input_shape), np.float32)
    if units is None:
        trained, frozen = initialized("fashion_mnist_cnn", sample)
        return trained, lambda weights, x: logits("fashion_mnist_cnn", weights, frozen, x)

    def outputs(weights: Weights, x: Array) -> Array:
        for width in (*units, NUM_CLASSES):
            x = x @ weights(x.shape[-1], width) + weights(width, scale=0.0)
            x = jax.nn.relu(x) if width != NUM_CLASSES else x
        return x

    drawn = Weights()
    outputs(drawn, sample)
    return drawn.drawn, lambda weights, x: outputs(Weights(weights), x)


def build(workload: Workload, way: str) -> Train:
    """A model and how to train it.

    Args:
        workload: what a round trains.
        way: "loop", or "loop-unrolled": the batches of a client without a loop. On a CPU, XLA has
            a slow convolution inside of loops.
    """
    server, outputs = network(workload)
    workload.check_size(sum(array.size for array in server))
    x, y = (jnp.asarray(array) for array in workload.arrays())
    generator = np.random.default_rng(0)

    def loss_of(weights: list[Array], inputs: Array, targets: Array) -> Array:
        log_probabilities = jax.nn.log_softmax(outputs(weights, inputs))
        return -jnp.take_along_axis(log_probabilities, targets[:, None], axis=1).mean()

    # The running sums are given away: they are written in place.
    @jax.jit(donate_argnums=(0, 1))
    def add_client(
        changes: list[Array],
        total: Array,
        server: list[Array],
        x: Array,
        y: Array,
        client: Array,
        batches: Array,
    ) -> tuple[list[Array], Array]:
        def step(weights: list[Array], rows: Array) -> tuple[list[Array], Array]:
            loss, gradients = jax.value_and_grad(loss_of)(weights, x[client, rows], y[client, rows])
            after = [w - CLIENT_LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
            return after, loss

        trained, losses = jax.lax.scan(step, server, batches, unroll=way == "loop-unrolled")
        triples = zip(changes, trained, server, strict=True)
        return [change + after - before for change, after, before in triples], total + losses.sum()

    @jax.jit
    def add_mean(server: list[Array], changes: list[Array]) -> list[Array]:
        scale = SERVER_LEARNING_RATE / workload.cohort_size
        return [value + scale * each for value, each in zip(server, changes, strict=True)]

    carried = [server]

    def train(num_rounds: int) -> Callable[[], Any]:
        def run() -> float:
            loss = jnp.zeros(())
            for _ in range(num_rounds):
                server = carried[0]
                changes = [jnp.zeros_like(value) for value in server]
                for number in workload.cohort(generator):
                    changes, loss = add_client(
                        changes,
                        loss,
                        server,
                        x,
                        y,
                        number % len(x),
                        workload.local_batches(generator),
                    )
                carried[0] = add_mean(server, changes)
            jax.block_until_ready(carried)
            return float(loss)

        return run

    return train
