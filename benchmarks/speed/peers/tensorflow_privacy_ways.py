"""TensorFlow Privacy on `tf_keras`: plain `fit`, its `DPModel` and its vectorized optimizer."""

import os
import sys
from collections.abc import Callable
from typing import Any

# Both before the first import: its Keras is the older one, and the whole package does not import
# beside a current TensorFlow while its parts do.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]

import tf_keras  # noqa: E402
from framework import Framework, NotAvailableError, Train  # noqa: E402
from suite import Benchmark  # noqa: E402
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry  # noqa: E402
from tensorflow_privacy.privacy.keras_models import dp_keras_model  # noqa: E402
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras_vectorized  # noqa: E402


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: not used, there is one only.
    """
    del name
    return Framework(
        build=build, packages=("tensorflow-privacy", "tensorflow", "tf_keras", "numpy")
    )


def build(benchmark: Benchmark, way: str) -> Train:
    """A compiled model and how to train it.

    Args:
        benchmark: the model.
        way: "plain", "fast" (`DPModel` with the registry of layers that have a rule for norms),
            "model" (`DPModel` without) or "vectorized" (`VectorizedDPKerasSGDOptimizer`); with
            "-xla" a `DPModel` with `use_xla=True`, its default, which is often slower on CPU.
    """
    inputs, outputs = benchmark.build(tf_keras)
    optimizer: Any = tf_keras.optimizers.SGD(0.01)
    reduction = tf_keras.losses.Reduction.AUTO
    model: tf_keras.Model
    kind = way.removesuffix("-xla")
    if kind in ("fast", "model"):
        model = _private_model(inputs, outputs, kind == "fast", use_xla=kind != way)
    else:
        model = tf_keras.Model(inputs, outputs)
    if way == "vectorized":
        make = dp_optimizer_keras_vectorized.VectorizedDPKerasSGDOptimizer
        optimizer = make(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.01)
        reduction = tf_keras.losses.Reduction.NONE
    benchmark.check_size(sum(weight.shape.num_elements() for weight in model.trainable_weights))
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

    def train(num_steps: int) -> Callable[[], Any]:
        x, y = benchmark.data(benchmark.batch_size * num_steps)
        return lambda: model.fit(x, y, batch_size=benchmark.batch_size, verbose=0)

    return train


def _private_model(inputs: Any, outputs: Any, is_fast: bool, use_xla: bool) -> tf_keras.Model:
    registry = layer_registry.make_default_layer_registry() if is_fast else None
    model = dp_keras_model.DPModel(
        l2_norm_clip=1.0,
        noise_multiplier=1.0,
        layer_registry=registry,
        use_xla=use_xla,
        inputs=inputs,
        outputs=outputs,
    )
    # Without a rule for each layer, `DPModel` goes the way of "model" and does not say so.
    if is_fast and not model._enable_fast_peg_computation:
        layers = [layer for layer in model.layers if layer.trainable_variables]
        without = {type(layer).__name__ for layer in layers if not registry.is_elem(layer)}
        raise NotAvailableError(f"no rule for {', '.join(sorted(without))}")
    return model
