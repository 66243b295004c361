"""What a process of `program.py` trains, and what it returns of it.

Each function takes the scope in which models are made and the options of the program, and returns
arrays by name.
"""

import functools
import os

import keras
import numpy as np

import keras_adaclip as ka

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 240, 6, 3
DELTA = 1e-5


def features(shape=(NUM_FEATURES,)):
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, *shape)).astype("float32")
    # Norms of gradients on both sides of any threshold.
    return x * np.linspace(0.1, 3.0, NUM_EXAMPLES).reshape(-1, *[1] * len(shape)).astype("float32")


def labels():
    return np.random.default_rng(1).integers(0, NUM_CLASSES, NUM_EXAMPLES).astype("int32")


def share(options, *arrays):
    arrays = arrays or (features(), labels())
    return [np.array_split(array, options["processes"])[options["process"]] for array in arrays]


def quantile(**options):
    return ka.clipping.QuantileClipping(0.5, 0.5, **options)


def dense_model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((NUM_FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh", name="hidden")(inputs)
    return ka.PrivateModel(inputs, keras.layers.Dense(NUM_CLASSES, name="logits")(hidden))


def image_model():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Conv2D(4, 3, activation="relu", name="conv")]
    layers += [keras.layers.GroupNormalization(2, name="norm"), keras.layers.Flatten()]
    layers += [keras.layers.Dense(NUM_CLASSES, name="logits")]
    return ka.PrivateSequential([keras.Input((5, 5, 2)), *layers])


def plain_sgd():
    return keras.optimizers.SGD(1.0)


def momentum():
    return keras.optimizers.SGD(0.5, momentum=0.5)


def compiled(scope, make=dense_model, make_optimizer=momentum, jit_compile="auto", **options):
    options = {"clipping": 0.5, "noise_multiplier": 0.0, "seed": 7, **options}
    with scope():
        model = make()
        optimizer = ka.optimizers.DPOptimizer(make_optimizer(), **options)
        model.compile(optimizer, jit_compile=jit_compile, **on_logits())
    return model


def on_logits():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"loss": loss, "metrics": ["accuracy"]}


def fitted(model, x, *data, **options):
    history = model.fit(x, *data, verbose=0, **options).history
    spent = model.privacy_spent(DELTA)
    return {
        "weights": flat(model.get_weights()),
        "steps": spent.steps,
        "epsilon": spent.epsilon,
        "clip_norm": model.optimizer.clip_norm,
        "owner": model.privacy_ledger.current.owner,
        **{name: history[name][-1] for name in ("loss", "accuracy")},
    }


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


# Twenty steps in each of these.
POISSON = {"batch_size": 48, "epochs": 4}


def noised(scope):
    return compiled(scope, noise_multiplier=1.0, clipping=quantile(count_noise_stddev=20.0))


def poisson(scope, options):
    """The same draws on any number of devices and processes."""
    return fitted(noised(scope), *share(options), **POISSON)


def planned(scope, options):
    """Steps take the size of the whole gradient, not that of a replica's part."""
    optimizer = ka.optimizers.PlannedMomentum
    model = compiled(scope, make_optimizer=optimizer, noise_multiplier=0.3)
    return fitted(model, *share(options), **POISSON)


def source(options, **arguments):
    """Return this process's rows as a source, drawn as in `poisson`."""
    pairs = list(zip(*share(options), strict=True))
    arguments = {"expected_batch_size": 48, "seed": 7, **arguments}
    return ka.sampling.PoissonDataset.from_source(pairs, **arguments)


def own_source(scope, options):
    return fitted(noised(scope), source(options, workers=1), epochs=4)


def truncated(scope, options):
    return fitted(compiled(scope), source(options, max_batch_size=50), epochs=4)


def in_chunks(scope, options):
    """A part of the gradient that touches no data counts once, over chunks and devices."""

    def make():
        model = dense_model()
        model.layers[1].kernel.regularizer = keras.regularizers.L2(0.05)
        return model

    return fitted(compiled(scope, make, microbatch_size=4), features(), labels(), **POISSON)


def shuffled_in_chunks(scope, options):
    """Batches that the model's own sampling has not padded, in pieces that they do not fill."""
    model = compiled(scope, microbatch_size=5)
    return fitted(model, features(), labels(), sampling="shuffle", shuffle=False, **POISSON)


def images(scope, options):
    model = compiled(scope, image_model, noise_multiplier=0.5)
    return fitted(model, features((5, 5, 2)), labels(), **POISSON)


def federated(scope, **options):
    clipping = ka.clipping.QuantileClipping(0.3, 0.5, count_noise_stddev=4.0)
    private = {"clipping": clipping, "noise_multiplier": 0.5, "seed": 7, "microbatch_size": None}
    private |= {name: options.pop(name) for name in list(options) if name in private}
    with scope():
        base = dense_model()
        model = ka.federate(keras.Model(base.inputs, base.outputs))
        optimizer = ka.optimizers.DPOptimizer(plain_sgd(), **private)
        local = {"client_optimizer": keras.optimizers.SGD(0.1), "client_batch_size": 4}
        model.compile(optimizer, **{**local, **options}, **on_logits())
    return model


def population():
    ids = np.random.default_rng(2).integers(0, 30, NUM_EXAMPLES)
    return ka.federated.ClientData.from_arrays(features(), labels(), ids)


def clients(scope, options):
    return fitted(federated(scope), population(), cohort_size=6, epochs=4)


def shared_population(options, of_processes=4):
    """Return this process's clients; of one process, all in the order of `of_processes`."""
    data, processes = population(), options["processes"]
    ids = list(data.client_ids)
    parts = [ids[number::of_processes] for number in range(of_processes)]
    size = of_processes // processes
    here = parts[options["process"] * size : (options["process"] + 1) * size]
    return data.subset([client for part in here for client in part])


def shared_clients(scope, options):
    """Ten rounds, the same on any number of processes."""
    rounds = {"cohort_size": 10, "epochs": 5, "steps_per_epoch": 2}
    return fitted(federated(scope, local_epochs=2), shared_population(options), **rounds)


def clients_in_turn(scope, options):
    """One client after another, while those of other processes end."""
    rounds = {"cohort_size": 10, "epochs": 3}
    return fitted(federated(scope, microbatch_size=1), shared_population(options), **rounds)


def clients_whole(scope, options):
    """Batches of all examples of a client, so that one process decides the shape of all."""
    model = federated(scope, client_batch_size=None, client_examples_limit=9, noise_multiplier=1.0)
    rounds = {"cohort_size": 10, "epochs": 5, "sampling": "fixed"}
    return fitted(model, shared_population(options), **rounds)


def clients_without_seed(scope, options):
    rounds = {"cohort_size": 10, "epochs": 3}
    return fitted(federated(scope, seed=None), shared_population(options), **rounds)


# Noise and contributions


def noise_alone(scope, options):
    """Return what noise alone moves the weights of a linear model by, in units of its stddev."""

    def make():
        inputs = keras.Input((40,))
        return ka.PrivateModel(inputs, keras.layers.Dense(30, name="logits")(inputs))

    noised = {"noise_multiplier": 2.0, "clipping": 0.25, "seed": None}
    model = compiled(scope, make, plain_sgd, **noised)
    x = np.ones((64, 40), "float32")
    # Rows of two processes must differ; their weights are zero.
    x[:, 0] = np.arange(64)
    x, y, weight = share(options, x, np.zeros(64, "int32"), np.zeros(64, "float32"))
    seen = [flat(model.get_weights())]
    for _ in range(4):
        found = fitted(model, x, y, sample_weight=weight, batch_size=16, steps_per_epoch=1)
        seen.append(found["weights"])
    return {**found, "changes": np.diff(seen, axis=0) / (2.0 * 0.25 / 16)}


def one_more(scope, options):
    """Return how far one huge example moves the sum, wherever it lies in the batch."""
    distances = []
    whole = {"sampling": "shuffle", "shuffle": False, "batch_size": NUM_EXAMPLES}
    for position in (0, 3, NUM_EXAMPLES - 1):
        weights = []
        for factor in (0.0, 1e6):
            x = features()
            x[position] *= factor
            found = fitted(compiled(scope, make_optimizer=plain_sgd), x, labels(), **whole)
            weights.append(found["weights"])
        distances.append(np.linalg.norm(weights[1] - weights[0]) * NUM_EXAMPLES)
    return {"distances": distances}


class OneBatch(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.batch = np.repeat(features()[-1:], 8, axis=0), np.repeat(labels()[-1:], 8)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


def moved(scope, train):
    """Return how far a batch of eight times one row moves the weights, in clipping norms a row."""
    model = compiled(scope, make_optimizer=plain_sgd, clipping=0.01)
    with scope():
        model.build((None, NUM_FEATURES))
    before = flat(model.get_weights())
    train(model)
    return np.linalg.norm(flat(model.get_weights()) - before) / 0.01


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


def adapted_outside(scope, options):
    """A layer that steps only read may lie anywhere."""
    normalization = keras.layers.Normalization()
    normalization.adapt(features())

    def make():
        inputs = keras.Input((NUM_FEATURES,))
        return ka.PrivateModel(inputs, keras.layers.Dense(NUM_CLASSES)(normalization(inputs)))

    return fitted(compiled(scope, make), features(), labels(), batch_size=48)


# What is refused


def refused(train):
    """Return a scenario that returns the message with which training is refused."""

    @functools.wraps(train)
    def scenario(scope, options):
        try:
            return train(scope, options)
        except ValueError as error:
            return {"message": str(error)}

    return scenario


@refused
def same_rows(scope, options):
    return fitted(compiled(scope), features(), labels(), batch_size=48)


@refused
def other_local_epochs(scope, options):
    model = federated(scope, local_epochs=1 + options["process"])
    return fitted(model, shared_population(options), cohort_size=6)


@refused
def other_thresholds(scope, options):
    """One process clips to more than the others, and than the noise is for."""
    model = compiled(scope, clipping=0.5 + options["process"])
    return fitted(model, *share(options), batch_size=48)


@refused
def other_state_later(scope, options):
    """A callback moves the threshold in one process, after the first epoch."""
    model = compiled(scope, clipping=quantile())

    def move(*_):
        with scope():
            for variable in model.optimizer.own_variables:
                if variable.name == "clip_norm":
                    variable.assign(variable + options["process"])

    moves = keras.callbacks.LambdaCallback(on_epoch_end=move)
    return fitted(model, *share(options), batch_size=48, epochs=2, callbacks=[moves])


@refused
def other_weights(scope, options):
    """On JAX they cannot be assigned."""
    model = compiled(scope)
    with scope():
        model.build((None, NUM_FEATURES))
        model.set_weights([value + options["process"] for value in model.get_weights()])
    return fitted(model, *share(options), batch_size=48)


@refused
def shuffled_share(scope, options):
    return fitted(compiled(scope), *share(options), batch_size=48, sampling="shuffle")


@refused
def other_draws(scope, options):
    """Each process has another idea of the whole batch."""
    size = 24 + options["process"]
    data = ka.sampling.PoissonDataset(*share(options), expected_batch_size=size)
    return fitted(compiled(scope), data)


@refused
def uneven(scope, options):
    return fitted(compiled(scope), features(), labels(), batch_size=45, sampling="shuffle")


@refused
def made_before(scope, options):
    """The model was made before the distribution was set, or outside of the strategy's scope."""
    if keras.backend.backend() == "jax":
        distribution = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        model = compiled(scope)
        model.build((None, NUM_FEATURES))
        keras.distribution.set_distribution(distribution)
    else:
        optimizer = keras.optimizers.SGD(0.5)
        model = compiled(scope, make_optimizer=lambda: optimizer)
    return fitted(model, features(), labels(), batch_size=48)


@refused
def built_outside(scope, options):
    """The optimizer's variables, ledger and noise counter among them, are no device's copies."""
    # With slots Keras itself refuses.
    model = compiled(scope, make_optimizer=plain_sgd)
    with scope():
        model.build((None, NUM_FEATURES))
    model.optimizer.build(model.trainable_variables)
    return fitted(model, features(), labels(), batch_size=48)


@refused
def one_batch(scope, options):
    """Keras gives a batch of `train_on_batch` to every replica of TensorFlow."""
    return {"loss": compiled(scope).train_on_batch(features(), labels())[0]}


@refused
def joined_batches(scope, options):
    """A last batch that is smaller: TensorFlow may fill it up from the next pass."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((features(), labels())).batch(100).repeat()
    return fitted(compiled(scope), data, steps_per_epoch=4, num_examples=NUM_EXAMPLES)


@refused
def compiled_by_xla(scope, options):
    model = compiled(scope, jit_compile=True)
    return fitted(model, features(), labels(), batch_size=48)


# Processes that end


def resumed(scope, options):
    """Four epochs with `BackupAndRestore`; where it is asked for, one process ends in the third."""
    epochs = []

    def begin(epoch, logs):
        epochs.append(epoch)
        if epoch == 2 and options["process"] == options.get("ends"):
            os._exit(7)

    folder = f"{options['folder']}/backup-{options['process']}"
    callbacks = [
        keras.callbacks.BackupAndRestore(folder, double_checkpoint=True),
        keras.callbacks.LambdaCallback(on_epoch_begin=begin),
    ]
    model = compiled(scope, noise_multiplier=1.0, seed=None)
    found = fitted(model, *share(options), callbacks=callbacks, **POISSON)
    return {**found, "epochs": epochs}
