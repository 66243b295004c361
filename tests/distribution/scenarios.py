"""What a process of `program.py` trains, and what it tells of it.

Each function takes the scope in which models are made and the options of the program, and returns
arrays by name.
"""

import math
import os
import re

import keras
import numpy as np

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.models import private_training

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 240, 6, 3
DELTA = 1e-5


def features(shape=(NUM_FEATURES,)):
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, *shape)).astype("float32")
    # Norms of gradients on both sides of any threshold.
    return x * np.linspace(0.1, 3.0, NUM_EXAMPLES).reshape(-1, *[1] * len(shape)).astype("float32")


def labels():
    return np.random.default_rng(1).integers(0, NUM_CLASSES, NUM_EXAMPLES).astype("int32")


def share(options, *arrays):
    """This process's rows."""
    return [array[options["process"] :: options["processes"]] for array in arrays]


def dense_model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((NUM_FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh", name="hidden")(inputs)
    return ka.PrivateModel(inputs, keras.layers.Dense(NUM_CLASSES, name="logits")(hidden))


def image_model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 5, 2))
    x = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = keras.layers.GroupNormalization(2, name="norm")(x)
    x = keras.layers.Flatten()(x)
    return ka.PrivateModel(inputs, keras.layers.Dense(NUM_CLASSES, name="logits")(x))


def plain_sgd():
    return keras.optimizers.SGD(1.0)


def compiled(scope, make=dense_model, noise_multiplier=0.0, clipping=0.5, **options):
    """A private model that was made and compiled in a scope."""
    make_optimizer = options.pop("optimizer", lambda: keras.optimizers.SGD(0.5, momentum=0.5))
    to_optimizer = {
        name: options.pop(name) for name in ("microbatch_size", "seed") if name in options
    }
    with scope():
        model = make()
        model.compile(
            optimizer=ka.optimizers.DPOptimizer(
                make_optimizer(),
                clipping=clipping,
                noise_multiplier=noise_multiplier,
                **{"seed": 7, **to_optimizer},
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **options,
        )
    return model


def told(model, history=None):
    """Weights, ledger, threshold and the last losses."""
    spent = model.privacy_spent(DELTA)
    found = {
        "weights": np.concatenate([np.ravel(value) for value in model.get_weights()]),
        "steps": spent.steps,
        "epsilon": spent.epsilon,
        "clip_norm": model.optimizer.clip_norm,
        "identity": model.optimizer.run.identity,
    }
    if history is not None:
        found |= {name: history.history[name][-1] for name in ("loss", "accuracy")}
    return found


# Twenty steps in each of these.


def poisson(scope, options):
    """The same draws on any number of devices of one process."""
    model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))
    x, y = share(options, features(), labels())
    return told(model, model.fit(x, y, batch_size=48, epochs=4, verbose=0))


def everyone(scope, options):
    """Every example in every step: what is drawn is the same however the rows lie."""
    model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))
    x, y = share(options, features(), labels())
    return told(model, model.fit(x, y, batch_size=NUM_EXAMPLES, epochs=20, verbose=0))


def everyone_noised(scope, options):
    """The same with noise, from a seed."""
    model = compiled(
        scope,
        noise_multiplier=1.0,
        clipping=ka.clipping.QuantileClipping(0.5, 0.5, count_noise_stddev=20.0),
    )
    x, y = share(options, features(), labels())
    return told(model, model.fit(x, y, batch_size=NUM_EXAMPLES, epochs=20, verbose=0))


def in_chunks(scope, options):
    model = compiled(scope, microbatch_size=4)
    return told(model, model.fit(features(), labels(), batch_size=48, epochs=4, verbose=0))


def shuffled_in_chunks(scope, options):
    """Batches that the model's own sampling has not padded, in pieces that they do not fill."""
    model = compiled(scope, microbatch_size=5)
    arguments = {"sampling": "shuffle", "shuffle": False, "batch_size": 48}
    return told(model, model.fit(features(), labels(), epochs=4, verbose=0, **arguments))


def images(scope, options):
    model = compiled(scope, image_model, noise_multiplier=0.5)
    x = features((5, 5, 2))
    return told(model, model.fit(x, labels(), batch_size=48, epochs=4, verbose=0))


def regularized(scope, options):
    """A part of the gradient that touches no data counts once, whatever the number of devices."""

    def make():
        model = dense_model()
        model.layers[1].kernel.regularizer = keras.regularizers.L2(0.05)
        return model

    model = compiled(scope, make)
    return told(model, model.fit(features(), labels(), batch_size=48, epochs=4, verbose=0))


def clients(scope, options):
    with scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((NUM_FEATURES,)),
                keras.layers.Dense(8, activation="tanh", name="hidden"),
                keras.layers.Dense(NUM_CLASSES, name="logits"),
            ]
        )
        model = ka.federate(model)
        model.compile(
            optimizer=ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(1.0),
                clipping=ka.clipping.QuantileClipping(0.3, 0.5, count_noise_stddev=4.0),
                noise_multiplier=0.5,
                seed=7,
            ),
            client_optimizer=keras.optimizers.SGD(0.1),
            client_batch_size=4,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    ids = np.random.default_rng(2).integers(0, 30, NUM_EXAMPLES)
    data = ka.federated.ClientData.from_arrays(features(), labels(), ids)
    return told(model, model.fit(data, cohort_size=6, epochs=4, verbose=0))


# Noise


def noise_alone(scope, options):
    """Weights of a linear model after one step each that only noise has moved."""

    def make():
        inputs = keras.Input((40,))
        return ka.PrivateModel(inputs, keras.layers.Dense(30, name="logits")(inputs))

    changes = []
    model = compiled(
        scope,
        make,
        noise_multiplier=2.0,
        clipping=0.25,
        seed=None,
        optimizer=plain_sgd,
    )
    x = np.ones((64, 40), "float32")
    # Rows of two processes must differ; what they weigh is nothing.
    x[:, 0] = np.arange(64)
    x, y, weight = share(options, x, np.zeros(64, "int32"), np.zeros(64, "float32"))
    for _ in range(4):
        before = model.get_weights()
        model.fit(x, y, sample_weight=weight, batch_size=16, steps_per_epoch=1, verbose=0)
        changes += [after - each for after, each in zip(model.get_weights(), before, strict=True)]
    expected = 2.0 * 0.25 / 16
    return {**told(model), "changes": np.concatenate([np.ravel(c) for c in changes]) / expected}


# One contribution


def one_more(scope, options):
    """How far one huge example moves the sum, wherever it lies in the batch."""
    distances = []
    for position in (0, 3, NUM_EXAMPLES - 1):
        weights = []
        for factor in (0.0, 1e6):
            model = compiled(scope, clipping=0.5, optimizer=plain_sgd)
            x = features()
            x[position] *= factor
            arguments = {"sampling": "shuffle", "shuffle": False, "batch_size": NUM_EXAMPLES}
            model.fit(x, labels(), verbose=0, **arguments)
            weights.append(told(model)["weights"])
        distances.append(np.linalg.norm(weights[1] - weights[0]) * NUM_EXAMPLES)
    return {"distances": distances}


# What a step costs


def traces(scope, options):
    """How often Python runs the step, by epoch, and what it hands to be summed over devices."""
    calls, sums = [0], []
    step, summed = private_training.private_step, backend.sums_of_replicas

    def counted(*arguments):
        calls[0] += 1
        return step(*arguments)

    def noted(tensors):
        sums.append(sum(int(np.prod(tensor.shape)) for tensor in tensors))
        return summed(tensors)

    private_training.private_step, backend.sums_of_replicas = counted, noted
    try:
        model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))
        by_epoch = []
        note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: by_epoch.append(calls[0]))
        model.fit(features(), labels(), batch_size=48, epochs=12, verbose=0, callbacks=[note])
    finally:
        private_training.private_step, backend.sums_of_replicas = step, summed
    num_weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return {"by_epoch": by_epoch, "summed": sums, "num_weights": num_weights}


def bytes_reduced(scope, options):
    """The numbers that XLA's program for a step sends between devices, by kind of collective."""
    model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))
    programs = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: programs.append(program_of_step(model))
    )
    model.fit(features(), labels(), batch_size=48, verbose=0, callbacks=[note])
    (text,) = programs
    counts = dict.fromkeys(("all-reduce", "all-gather", "all-to-all", "collective-permute"), 0)
    for kind in counts:
        for line in re.findall(rf"= (.*) {kind}(?:-start)?\(", text):
            for shape in re.findall(r"[a-z]+\d*\[([\d,]*)\]", line):
                counts[kind] += math.prod(int(size) for size in shape.split(",") if size)
    num_metrics = sum(int(np.prod(v.shape)) for v in model.metrics_variables)
    num_weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    numbers = {name.replace("-", "_"): count for name, count in counts.items()}
    return {**numbers, "num_weights": num_weights, "num_metrics": num_metrics}


def program_of_step(model):
    """What XLA makes of a step, within a `fit`."""
    import jax

    distribution = keras.distribution.distribution()
    batch = {"x": features()[:48], "y": labels()[:48], "mask": np.ones(48, bool)}
    batch = {
        name: jax.device_put(array, distribution.get_data_layout(array.shape).backend_layout)
        for name, array in batch.items()
    }
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in group] for group in groups)
    shardings = jax.tree.map(lambda value: value.sharding, state)
    compiled_step = jax.jit(model.train_step, out_shardings=(None, shardings))
    return compiled_step.lower(state, batch).compile().as_text()


# What is refused


def refusal(train):
    """The message with which training is refused, and how many steps ran."""
    try:
        model = train()
    except ValueError as error:
        return {"message": str(error)}
    return {"steps": model.privacy_spent(DELTA).steps}


def same_rows(scope, options):
    """Each process was given all the data."""

    def train():
        model = compiled(scope)
        model.fit(features(), labels(), batch_size=48, verbose=0)
        return model

    return refusal(train)


def other_seeds(scope, options):
    def train():
        model = compiled(scope, seed=options["process"])
        x, y = share(options, features(), labels())
        model.fit(x, y, batch_size=48, verbose=0)
        return model

    return refusal(train)


def other_thresholds(scope, options):
    """One process clips to more than the others, and than the noise is for."""

    def train():
        model = compiled(scope, clipping=0.5 + options["process"])
        x, y = share(options, features(), labels())
        model.fit(x, y, batch_size=48, verbose=0)
        return model

    return refusal(train)


def other_state(scope, options):
    """A callback loads another state in one process, once training has begun."""

    def train():
        model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))

        def load(logs):
            with scope():
                for variable in model.optimizer.own_variables:
                    if variable.name == "clip_norm":
                        variable.assign(variable + options["process"])

        loads = keras.callbacks.LambdaCallback(on_train_begin=load)
        x, y = share(options, features(), labels())
        model.fit(x, y, batch_size=48, verbose=0, callbacks=[loads])
        return model

    return refusal(train)


class MovesThreshold(keras.callbacks.Callback):
    """In one process, after the first epoch."""

    def __init__(self, scope, by):
        super().__init__()
        self.scope, self.by = scope, by

    def on_epoch_end(self, epoch, logs=None):
        with self.scope():
            for variable in self.model.optimizer.own_variables:
                if variable.name == "clip_norm":
                    variable.assign(variable + self.by)


def other_state_later(scope, options):
    def train():
        model = compiled(scope, clipping=ka.clipping.QuantileClipping(0.5, 0.5))
        x, y = share(options, features(), labels())
        moves = MovesThreshold(scope, by=options["process"])
        model.fit(x, y, batch_size=48, epochs=2, verbose=0, callbacks=[moves])
        return model

    return refusal(train)


def other_weights(scope, options):
    """On JAX they cannot be assigned."""

    def train():
        model = compiled(scope)
        with scope():
            model.build((None, NUM_FEATURES))
            model.set_weights([value + options["process"] for value in model.get_weights()])
        x, y = share(options, features(), labels())
        model.fit(x, y, batch_size=48, verbose=0)
        return model

    return refusal(train)


def shuffled_share(scope, options):
    def train():
        model = compiled(scope)
        x, y = share(options, features(), labels())
        model.fit(x, y, batch_size=48, sampling="shuffle", verbose=0)
        return model

    return refusal(train)


def own_draws(scope, options):
    def train():
        model = compiled(scope)
        x, y = share(options, features(), labels())
        model.fit(ka.sampling.PoissonDataset(x, y, expected_batch_size=24), verbose=0)
        return model

    return refusal(train)


def uneven(scope, options):
    def train():
        model = compiled(scope)
        model.fit(features(), labels(), batch_size=45, sampling="shuffle", verbose=0)
        return model

    return refusal(train)


def made_before(scope, options):
    """The model was made before the distribution was set, or outside of the strategy's scope."""

    def train():
        if keras.backend.backend() == "jax":
            distribution = keras.distribution.distribution()
            keras.distribution.set_distribution(None)
            try:
                model = compiled(scope)
                model.build((None, NUM_FEATURES))
            finally:
                keras.distribution.set_distribution(distribution)
            model.fit(features(), labels(), batch_size=48, verbose=0)
            return model
        optimizer = keras.optimizers.SGD(0.5)
        model = compiled(scope, optimizer=lambda: optimizer)
        model.fit(features(), labels(), batch_size=48, verbose=0)
        return model

    return refusal(train)


def built_outside(scope, options):
    """The optimizer's variables, ledger and noise counter among them, are no device's copies."""

    def train():
        # With slots Keras itself refuses.
        model = compiled(scope, optimizer=plain_sgd)
        with scope():
            model.build((None, NUM_FEATURES))
        model.optimizer.build(model.trainable_variables)
        model.fit(features(), labels(), batch_size=48, verbose=0)
        return model

    return refusal(train)


def adapted_outside(scope, options):
    """What a step only reads may lie anywhere."""
    normalization = keras.layers.Normalization()
    normalization.adapt(features())

    def make():
        inputs = keras.Input((NUM_FEATURES,))
        return ka.PrivateModel(inputs, keras.layers.Dense(NUM_CLASSES)(normalization(inputs)))

    model = compiled(scope, make)
    return told(model, model.fit(features(), labels(), batch_size=48, verbose=0))


def one_batch(scope, options):
    """Keras gives a batch of `train_on_batch` to every replica of TensorFlow."""

    def train():
        model = compiled(scope)
        model.train_on_batch(features(), labels())
        return model

    return refusal(train)


class OneBatch(keras.utils.PyDataset):
    """Eight times one row."""

    def __init__(self):
        super().__init__()
        self.batch = np.repeat(features()[-1:], 8, axis=0), np.repeat(labels()[-1:], 8)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


def moved(scope, train):
    """How far a batch of eight times one row moves the weights, in clipping norms a row."""
    model = compiled(scope, clipping=0.01, optimizer=plain_sgd)
    with scope():
        model.build((None, NUM_FEATURES))
    before = np.concatenate([np.ravel(value) for value in model.get_weights()])
    train(model)
    return np.linalg.norm(told(model)["weights"] - before) / 0.01


def one_batch_moves(scope, options):
    return {"distance": moved(scope, lambda model: model.train_on_batch(*OneBatch()[0]))}


def data_sets_move(scope, options):
    """Batches that others have made: each row is to be on one device."""
    import tensorflow as tf

    def generator():
        while True:
            yield OneBatch()[0]

    known = {"num_examples": 8, "steps_per_epoch": 1, "verbose": 0}
    rows = tf.data.Dataset.from_tensor_slices(OneBatch()[0]).batch(8, drop_remainder=True)
    return {
        "keras": moved(scope, lambda model: model.fit(OneBatch(), **known)),
        "tensorflow": moved(scope, lambda model: model.fit(rows, **known)),
        "generator": moved(scope, lambda model: model.fit(generator(), **known)),
    }


def joined_batches(scope, options):
    """A last batch that is smaller: TensorFlow may fill it up from the next pass."""
    import tensorflow as tf

    def train():
        model = compiled(scope)
        data = tf.data.Dataset.from_tensor_slices((features(), labels())).batch(100).repeat()
        model.fit(data, steps_per_epoch=4, num_examples=NUM_EXAMPLES, verbose=0)
        return model

    return refusal(train)


def compiled_by_xla(scope, options):
    def train():
        model = compiled(scope, jit_compile=True)
        model.fit(features(), labels(), batch_size=48, verbose=0)
        return model

    return refusal(train)


# Processes that end


def resumed(scope, options):
    """Four epochs with `BackupAndRestore`; where it is asked for, one process ends in the third."""

    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2 and options["process"] == options.get("ends"):
                os._exit(7)

    model = compiled(scope, noise_multiplier=1.0, seed=None)
    x, y = share(options, features(), labels())
    epochs = []
    history = model.fit(
        x,
        y,
        batch_size=48,
        epochs=4,
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(
                f"{options['folder']}/backup-{options['process']}", double_checkpoint=True
            ),
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: epochs.append(epoch)),
            Ends(),
        ],
    )
    return {**told(model, history), "epochs": epochs}
