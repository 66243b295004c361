"""Layers, losses and metrics that would break the guarantee."""

import contextlib

import keras
import numpy as np
from keras import ops

import keras_adaclip as ka
from tests.models import helpers

BACKEND = keras.backend.backend()


class Unsafe(keras.layers.Layer):
    """Returns `function(layer, x, training)`.

    `parts` are attributes by name: the options of a weight, or what makes something else.
    """

    def __init__(self, function, name="culprit", **parts):
        super().__init__(name=name)
        self.function, self.parts = function, parts

    def build(self, shape):
        for name, part in self.parts.items():
            made = part() if callable(part) else self.add_weight(name=name, **part)
            setattr(self, name, made)

    def call(self, x, training=None):
        return self.function(self, x, training)


def weight(shape=(), initializer="zeros", trainable=False, dtype="float32"):
    return {"shape": shape, "initializer": initializer, "trainable": trainable, "dtype": dtype}


def closed_gate(trainable=False):
    return weight((), keras.initializers.Constant(-0.5), trainable)


def add_mean(x, factor=1.0):
    return x + factor * ops.mean(x, axis=0, keepdims=True)


def is_many(x):
    """Whether there are more than eight rows, or TensorFlow does not know while it traces."""
    return x.shape[0] > 8 if isinstance(x.shape[0], int) else x.shape[0] is None


def centred(layer, x, training):
    return add_mean(x, -1.0) if training else x


def mixed_after(num_steps):
    """After some of the steps that the layer counts."""

    def call(layer, x, training):
        if training:
            layer.steps.assign(layer.steps + 1)
        steps = ops.max(ops.cast(layer.steps, "float32"))
        is_open = ops.logical_and(steps > num_steps, steps < 1e30)
        return add_mean(x, ops.cast(is_open, x.dtype))

    return call


def with_backward(x, change):
    """The rows; what comes back to them is changed."""

    @ops.custom_gradient
    def through(value):
        def backward(*args, upstream=None):
            # PyTorch gives the value too.
            return change(args[0] if upstream is None else upstream)

        return value * 1.0, backward

    return through(x)


def mixed_backward(layer, x, training):
    """Outputs are those of each row; gradients, of many rows, those of all."""
    return with_backward(x, add_mean) if is_many(x) else x


def bounded_backward(most):
    """Bounds the gradient of the whole batch, as some layers do with the aim of stability."""

    def bounded(gradient):
        length = ops.sqrt(ops.sum(ops.square(gradient)))
        return gradient * ops.minimum(1.0, most / (length + 1e-12))

    return lambda layer, x, training: with_backward(x, bounded)


def heeding_count(draw=None):
    """The number of rows counts, where a gate is open, in training alone."""

    def call(layer, x, training):
        if not training:
            return x
        factor = ops.relu(layer.gate) * ops.cast(ops.shape(x)[0], x.dtype)
        return (draw(x, layer.seeds) if draw else x) * (1.0 + factor)

    return call


class RelativeToLongest(keras.layers.Layer):
    """Scales a sequence by how much shorter it is than the longest one of its batch."""

    supports_masking = True

    def call(self, x, mask=None):
        lengths = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
        return x * ops.expand_dims(1.0 + ops.max(lengths) - lengths, -1)


def assigning(name, factor):
    """Keeps a mean of the rows in a weight."""

    def call(layer, x, training):
        variable = getattr(layer, name)
        if training:
            variable.assign(0.9 * variable + 0.1 * ops.mean(ops.stop_gradient(x), axis=0))
        return x + factor * variable

    return call


def adding_a_loss(layer, x, training):
    layer.add_loss(ops.mean(ops.square(x)))
    return x


def unseeded_noise(layer, x, training):
    """Random numbers that no Keras seed generator knows of, nor PyTorch's."""
    if BACKEND == "torch":
        return x + np.random.default_rng().normal()
    import tensorflow as tf

    return x + tf.random.normal((1,))


# State that no step discards

HELD = [0.0]  # Something that no attribute leads to.


def in_buffer():
    import torch

    return torch.nn.Buffer(torch.zeros(()))


def in_variable():
    import tensorflow as tf

    return tf.Variable(0.0, trainable=False)


def remembering(read, write):
    """Adds the mean of the rows before these."""

    def call(layer, x, training):
        outputs = x + ops.cast(read(layer), x.dtype)
        # Where Keras finds shapes, PyTorch has no numbers.
        if training and not getattr(x, "is_meta", False):
            write(layer, ops.mean(ops.stop_gradient(x)))
        return outputs

    return call


def remembering_in_attribute(layer, x, training):
    """Used after many calls only."""
    outputs = x if layer.num_calls < 1000 else x + layer.seen
    layer.num_calls += 1
    layer.seen = ops.mean(ops.stop_gradient(x), axis=0)
    return outputs


def remembering_large_batches(layer, x, training):
    y = x if layer.seen is None else x + layer.seen
    if isinstance(x.shape[0], int) and x.shape[0] > 20 and not getattr(x, "is_meta", False):
        layer.seen = ops.mean(x, axis=0, keepdims=True)
    return y


def leaving_a_tensor(layer, x, training):
    """Where a step is compiled, whatever the step computes later may still read it."""
    layer.seen = [ops.mean(x)]
    return x


def remembering_in_python(layer, x, training):
    """Calls Python in a compiled step, which uses what it has seen many calls later."""

    def add(value):
        HELD.append(float(np.mean(value)))
        return np.float32(HELD[-1000] if len(HELD) > 1000 else 0.0)

    if BACKEND == "jax":
        import jax

        seen = jax.experimental.io_callback(add, jax.ShapeDtypeStruct((), np.float32), x)
    else:
        import tensorflow as tf

        seen = tf.numpy_function(add, [tf.stop_gradient(x)], tf.float32)
        seen.set_shape(())
    return x + seen


def remembering_single_rows(layer, x, training):
    """One row alone, as in models whose examples are differentiated one by one."""
    if x.shape[0] != 1 or getattr(x, "is_meta", False):
        return x
    outputs = x + float(layer.seen[0])
    with contextlib.suppress(Exception):  # Recorded tensors have no numbers.
        layer.seen[0] = float(ops.mean(x))
    return outputs


def counting(by):
    """Counts in Python, and makes a table in its first pass, which is no state."""

    def call(layer, x, training):
        layer.num_calls += by
        layer.table = np.arange(4.0) if layer.table is None else layer.table
        return x + 0.0 * layer.table.sum()

    return call


# By backend: what makes something that remembers a number, and the layer's function.
STATES = {
    "torch": {
        "buffer": (in_buffer, lambda layer: layer.seen, lambda layer, x: layer.seen.copy_(x)),
        "list": (int, lambda _: HELD[0], lambda _, x: HELD.__setitem__(0, x.detach())),
    },
    "tensorflow": {
        "variable": (in_variable, lambda layer: layer.seen, lambda layer, x: layer.seen.assign(x))
    },
    "jax": {},
}[BACKEND]


class WithOwnWeight(ka.PrivateModel):
    """Has a weight that no layer owns, so that examples are differentiated one by one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.dense = layer, keras.layers.Dense(3)
        self.factor = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x, training=None):
        return self.factor * self.dense(self.layer(x, training=training))


# Metrics and losses


class WithoutWeights(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="without_weights")
        self.total = self.add_variable((), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred):
        self.total.assign_add(ops.sum(y_pred))

    def result(self):
        return self.total


def contrastive(y_true, y_pred):
    """Pushes every row away from the others of its batch: zero for a row alone."""
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    return -ops.diagonal(ops.log_softmax(similarity, axis=-1))


class Adapting(keras.losses.Loss):
    """Keras would change its variable in each step; a private step would leave it as it is."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, name="scale")

    def call(self, y, y_pred):
        self.scale.assign(0.9 * self.scale)
        return ops.mean(ops.square(y_pred), axis=-1) * self.scale


class Stashing(ka.PrivateModel):
    """Leaves features of the whole batch where a loss may read them."""

    def __init__(self):
        super().__init__()
        self.hidden, self.logits = helpers.dense_layers()

    def call(self, x):
        HELD[0] = self.hidden(x)
        return self.logits(HELD[0])


class WithOwnComputeLoss(Stashing):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss * (1.0 + 1e-3 * ops.cast(ops.argmax(HELD[0][:, 0]), "float32"))


def of_stashed():
    return 1.0 + 1e-3 * ops.mean(ops.square(HELD[0]))


class Distance(keras.losses.SparseCategoricalCrossentropy):
    def call(self, y, y_pred):
        return super().call(y, y_pred) * of_stashed()


# Models whose own loss, of some form, reads what other rows left.
LOSSES_OF_STASHED = {
    "compute_loss": lambda: helpers.compiled(WithOwnComputeLoss()),
    "function": lambda: helpers.compiled(
        Stashing(), loss=lambda y, y_pred: helpers.sparse_crossentropy()(y, y_pred) * of_stashed()
    ),
    "subclass": lambda: helpers.compiled(Stashing(), loss=Distance(from_logits=True)),
}
