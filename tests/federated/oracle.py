"""A round by plain Keras: one client after another, each with its own copy of the model."""

import keras
import numpy as np
from keras import ops

from keras_adaclip.federated.cohorts import CohortBatches


def record_batches(monkeypatch):
    """Return a list that fills with the batches that `fit` draws."""
    batches, draw = [], CohortBatches.__getitem__

    def recording(cohorts, index):
        batches.append(draw(cohorts, index))
        return batches[-1]

    monkeypatch.setattr(CohortBatches, "__getitem__", recording)
    return batches


def draw_nobody(monkeypatch):
    """Let every round draw no client."""

    def empty(cohorts, index):
        return cohorts.take(np.array([], int), np.random.default_rng(0))

    monkeypatch.setattr(CohortBatches, "__getitem__", empty)


def trained_in(batch):
    """Return `(x, y, order, weight)` of each client of a batch, in the order in which they end."""
    found = []
    for shard in range(len(batch["step"])):
        num_events = batch["num_events"][shard]
        first = np.zeros(batch["step"].shape[2], int)
        for event in range(num_events):
            until = batch["until"][shard, event]
            for lane in np.flatnonzero(batch["ends"][shard, event]):
                steps = batch["step"][shard, first[lane] : until, lane]
                assert np.all(steps >= 0)
                first[lane] = until
                order = batch["order"][shard, steps]
                weight = batch["weight"][shard, event, lane]
                y = batch["y"][shard] if "y" in batch else None
                found.append((batch["x"][shard], y, order, weight))
        # No lane takes a step without a client that ends.
        assert all(np.all(batch["step"][shard, at:, lane] < 0) for lane, at in enumerate(first))
        assert not np.any(batch["ends"][shard, num_events:])
    return found


def arrays(values):
    return [ops.convert_to_numpy(value) for value in values]


def trained_by(
    model, client_optimizer, weights, client, *, proximal_strength=0.0, class_weight=None
):
    """Return the weights of one client of `trained_in` after its local steps."""
    x, y, order, _ = client
    loss = model.loss
    model.compile(
        optimizer=type(client_optimizer).from_config(client_optimizer.get_config()), loss=loss
    )
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    model.optimizer.build(model.trainable_variables)
    for places in order:
        rows = places[places >= 0]
        before = arrays(model.trainable_variables)
        model.train_on_batch(x[rows], y[rows], class_weight=class_weight)
        if proximal_strength > 0.0:
            # Plain SGD alone: what the term adds to the gradient adds to the step.
            rate = float(client_optimizer.learning_rate)
            for variable, old, start in zip(
                model.trainable_variables, before, weights, strict=True
            ):
                variable.assign(variable - rate * proximal_strength * (old - start))
    return arrays(model.trainable_variables)


def contributions(model, client_optimizer, weights, batch, **options):
    """Return what each client of a batch contributes: the server's weights less its own."""
    found = []
    for client in trained_in(batch):
        trained = trained_by(model, client_optimizer, weights, client, **options)
        found.append([before - after for before, after in zip(weights, trained, strict=True)])
    return found


def norm(contribution):
    return float(np.sqrt(sum(np.sum(np.square(part.astype(np.float64))) for part in contribution)))


def clipped_mean(found, clip_norm, cohort_size):
    """Return the clipped contributions over the expected number of clients."""
    total = [np.zeros_like(part) for part in found[0]]
    for contribution in found:
        factor = min(1.0, clip_norm / max(norm(contribution), 1e-30))
        total = [part + factor * own for part, own in zip(total, contribution, strict=True)]
    return [part / cohort_size for part in total]


def applied(server_optimizer, weights, gradients):
    """Return the weights after the first step of the server's optimizer."""
    optimizer = type(server_optimizer).from_config(server_optimizer.get_config())
    variables = [keras.Variable(value) for value in weights]
    optimizer.build(variables)
    optimizer.apply([ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    return arrays(variables)
