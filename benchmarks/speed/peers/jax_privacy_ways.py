"""JAX Privacy's `clipped_grad`, beside a plain JAX step; the models are plain JAX too."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from framework import Framework, Train
from jax_privacy import clipped_grad, noise_addition
from suite import Benchmark

from peers.jax_models import initialized, logits


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: not used, there is one only.
    """
    del name
    device = jax.local_devices()[0]
    is_cpu = device.platform == "cpu"
    return Framework(
        build=build,
        packages=("jax-privacy", "jax", "jaxlib", "optax", "numpy"),
        memory=None if is_cpu else lambda: device.memory_stats()["peak_bytes_in_use"],
    )


def build(benchmark: Benchmark, way: str) -> Train:
    """A model and its compiled step.

    Args:
        benchmark: the model.
        way: "plain", "vmap" (all examples at once, the default of `clipped_grad`) or "scan"
            (`microbatch_size=1`, one example after the other).
    """
    network, batch_size = benchmark.network, benchmark.batch_size
    trained, frozen = initialized(network, benchmark.data(2)[0])
    benchmark.check_size(sum(array.size for array in trained))

    def loss(trained: Any, frozen: Any, x: Any, y: Any) -> Any:
        outputs = logits(network, trained, frozen, x)
        return optax.losses.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    optimizer = optax.sgd(0.01)
    if way == "plain":
        values_and_gradients = jax.value_and_grad(loss)
    else:
        clipped = clipped_grad(
            loss,
            l2_clip_norm=1.0,
            batch_argnums=(2, 3),
            normalize_by=batch_size,
            return_values=True,
            microbatch_size=1 if way == "scan" else None,
        )
        stddev = clipped.l2_norm_bound  # noise multiplier 1
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=0)
        optimizer = optax.chain(privatizer, optimizer)

        def values_and_gradients(*arguments: Any) -> Any:
            gradients, auxiliary = clipped(*arguments)
            return auxiliary.values.mean(), gradients

    # Weights and the optimizer's state are given away, as Keras gives them.
    @jax.jit(donate_argnums=(0, 1))
    def step(trained: Any, state: Any, frozen: Any, x: Any, y: Any) -> Any:
        value, gradients = values_and_gradients(trained, frozen, x, y)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, value

    carried = [trained, optimizer.init(trained)]

    def train(num_steps: int) -> Callable[[], Any]:
        rows = batch_size * num_steps
        x, y = benchmark.data(rows)

        def run() -> float:
            # Rows in a new order and the mean loss, as `fit` has them.
            order = np.random.default_rng().permutation(rows)
            total = 0.0
            for start in range(0, rows, batch_size):
                chosen = order[start : start + batch_size]
                carried[0], carried[1], value = step(*carried, frozen, x[chosen], y[chosen])
                total += value
            jax.block_until_ready(carried)
            return float(total)

        return run

    return train
