"""TensorFlow by hand: one client's training as a `tf.function`, in a Python loop over clients."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import speed_path  # noqa: F401
import tensorflow as tf
from framework import Train
from workloads import CLIENT_LEARNING_RATE, SERVER_LEARNING_RATE, Workload

Tensor = Any


def build(workload: Workload, way: str) -> Train:
    """A model and how to train it.

    Args:
        workload: what a round trains.
        way: "loop", or "loop-xla" with `jit_compile=True`.
    """
    model = keras.Model(*workload.about.build(keras))
    workload.check_size(sum(math.prod(weight.shape) for weight in model.trainable_weights))
    weights = [weight.value for weight in model.trainable_weights]
    server = [tf.Variable(weight) for weight in weights]
    changes = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
    x, y = (tf.constant(array) for array in workload.arrays())
    generator = np.random.default_rng(0)

    @tf.function(jit_compile=way.endswith("-xla"))
    def train_client(x: Tensor, y: Tensor, batches: Tensor) -> Tensor:
        for weight, value in zip(weights, server, strict=True):
            weight.assign(value)
        total = 0.0
        for step in range(workload.num_steps):
            inputs, targets = tf.gather(x, batches[step]), tf.gather(y, batches[step])
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    targets, model(inputs, training=True)
                )
                loss = tf.reduce_mean(losses)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(CLIENT_LEARNING_RATE * gradient)
            total += loss
        for change, weight, value in zip(changes, weights, server, strict=True):
            change.assign_add(weight - value)
        return total

    @tf.function
    def add_client(client: Tensor, batches: Tensor) -> Tensor:
        # Not within XLA, which would copy the data of all clients every time.
        return train_client(x[client], y[client], batches)

    @tf.function
    def add_mean() -> None:
        for value, change in zip(server, changes, strict=True):
            value.assign_add(SERVER_LEARNING_RATE / workload.cohort_size * change)
            change.assign(tf.zeros_like(change))

    def train(num_rounds: int) -> Callable[[], Any]:
        def run() -> float:
            loss = tf.zeros(())
            for _ in range(num_rounds):
                for client in workload.cohort(generator) % len(x):
                    batches = tf.constant(workload.local_batches(generator))
                    loss += add_client(tf.constant(client), batches)
                add_mean()
            return float(loss)

        return run

    return train
