"""Rounds whose clients train on nodes, against `fit` on the same clients in one process."""

import functools
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.node_training import NodeTraining
from keras_adaclip.federated.server_rounds import NodeSum, ServerRounds
from tests.federated import support
from tests.federated.support import assert_close, clients_of, weights

SIZES = (7, 0, 5, 12, 1, 6, 3, 9, 4, 8)
NODES = (range(4), range(4, 5), range(5, 10))
COHORT, ROUNDS = 4, 3
# No client has so many.
compiled = functools.partial(support.compiled, client_examples_limit=100)


MADE_UP = (np.random.default_rng(9).normal(size=(8, 4)).astype("float32"), np.zeros(8, "int64"))


class Nodes:
    """Nodes in this process, each with its own model.

    Args:
        build: Takes nothing and returns a compiled model.
        clients: The clients of all nodes.
    """

    def __init__(self, build, clients):
        ids = list(clients.client_ids)
        self.trainings = [
            NodeTraining(build(), clients.subset([ids[number] for number in numbers]), MADE_UP)
            for numbers in NODES
        ]

    def sums(self, server, drawn, ledger):
        """Return what every node with a drawn client returns."""
        sent = [ops.convert_to_numpy(each.value) for each in server.weights]
        state = server.optimizer.clipping_state
        found = []
        for node, (numbers, training) in enumerate(zip(NODES, self.trainings, strict=True)):
            here = [number for number in drawn.numbers if number in numbers]
            if here:
                places = [number - numbers.start for number in here]
                returned = training.clipped_sum(sent, state, ledger, places, here, drawn.key)
                found.append(NodeSum(*returned, len(here), node))
        return found


def trained(server, nodes, num_rounds=ROUNDS, changed=lambda sums: sums, **options):
    """Run rounds, and return the logs of each."""
    rounds = ServerRounds(server, len(SIZES), COHORT, **options)
    logs = []
    with rounds.run(num_rounds) as left:
        for _ in range(left):
            drawn = rounds.begin_round()
            if drawn is None:
                break
            logs.append(rounds.end_round(changed(nodes.sums(server, drawn, rounds.ledger))))
    return logs


def quantile(groups="flat"):
    return ka.clipping.QuantileClipping(0.5, 0.3, count_noise_stddev=2.0, groups=groups)


LIMITED = {"client_examples_limit": 6}
OPTIONS = {
    "weighted": lambda: {"client_weighting": ka.federated.ByExamples(5, 4.0), **LIMITED},
    "groups": lambda: {"clipping": quantile("per_layer"), "local_epochs": 2},
    "slack": lambda: {"clipping": ka.clipping.SlaClip(0.3), "client_batch_size": None, **LIMITED},
    "coordinates": lambda: {
        "clipping": ka.clipping.AdaClip(0.5),
        "client": keras.optimizers.Adam(0.01),
        "server": keras.optimizers.Adam(0.1),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_weights_are_those_of_fit(name):
    def build():
        return compiled(**{"noise_multiplier": 0.5, "clipping": 0.2, **OPTIONS[name]()})

    clients = clients_of(SIZES)
    alone = build()
    alone.fit(clients, cohort_size=COHORT, epochs=ROUNDS, steps_per_epoch=1, verbose=0)
    server = build()
    trained(server, Nodes(build, clients))
    assert_close([weights(server)], [weights(alone)])
    assert list(server.privacy_ledger) == list(alone.privacy_ledger)
    for key, value in alone.optimizer.clipping_state.items():
        assert_close([server.optimizer.clipping_state[key]], [value])


def test_logs_tell_epsilon_and_norm_and_a_run_ends_at_its_target():
    server, nodes = noised(), noised_nodes()
    target = ka.callbacks.PrivacyCallback(delta=1e-3, target_epsilon=4.0)
    logs = trained(server, nodes, num_rounds=100, callbacks=[target])
    assert 1 < len(logs) < 100
    assert logs[0]["epsilon"] < logs[-1]["epsilon"] <= 4.0
    assert logs[-1]["epsilon"] == pytest.approx(server.privacy_spent(1e-3).epsilon)
    assert logs[-1]["clip_norm"] == pytest.approx(server.optimizer.clip_norm)


def sums_of(clients, positions, **options):
    """Return what a node with these clients returns for some of them."""
    server = compiled(**{"clipping": 0.2, **options})
    server.optimizer.build(server.trainable_variables)
    sent = [ops.convert_to_numpy(each.value) for each in server.weights]
    node = NodeTraining(compiled(**{"clipping": 0.2, **options}), clients, MADE_UP)
    state, ledger = server.optimizer.clipping_state, ServerRounds(server, 10, 4).ledger
    return node.clipped_sum(sent, state, ledger, positions, positions, key=5)


@functools.cache
def sums_without(left_out):
    return sums_of(clients_of(SIZES), [number for number in range(4) if number != left_out])


def unlike(change):
    """Return clients of which one, told by its id, is changed.

    Args:
        change: Takes and returns the `(x, y)` of this client.
    """

    def changed(changed_id):
        everyone = clients_of(SIZES)

        def read(client_id):
            examples = everyone.examples_at(client_id)
            return change(*examples) if client_id == changed_id else examples

        return ClientData.from_function(list(everyone.client_ids), read)

    return changed


def unreadable(x, y):
    raise OSError("no such file")


def leaving(x, y):
    sys.exit(1)


UNLIKE = {
    "unreadable": unreadable,
    "leaving": leaving,
    "of another shape": lambda x, y: (x[:, :2], y),
    "of text": lambda x, y: (x.astype(str), y),
    "of fewer labels": lambda x, y: (x, y[:1]),
    "with labels between classes": lambda x, y: (x, y + 0.5),
    # An error on PyTorch and TensorFlow, and NaN on JAX.
    "with labels out of range": lambda x, y: (x, y + 99),
    "with NaN": lambda x, y: (np.where(np.arange(len(x))[:, None] == 1, np.float32("nan"), x), y),
    # It takes part as the others do.
    "of another dtype": lambda x, y: (x.astype("float64"), y.astype("int16")),
}


@pytest.mark.parametrize(("name", "changed"), [*((name, 0) for name in UNLIKE), ("of text", 3)])
def test_a_client_that_cannot_be_used_adds_nothing_and_stops_nobody(name, changed):
    """Also if it is the first one of its node."""
    found = sums_of(unlike(UNLIKE[name])(changed), range(4))
    is_used = name == "of another dtype"
    expected = sums_without(None if is_used else changed)
    assert any(np.any(each) for each in expected[0])
    for one, other in zip(found[0], expected[0], strict=True):
        assert_close(one, other)


def test_dropout_of_a_client_does_not_depend_on_the_others():
    model = compiled([keras.Input((4,)), layers.Dropout(0.4), layers.Dense(3)], clipping=0.2)
    node = NodeTraining(model, clients_of(SIZES), MADE_UP)
    sent = [ops.convert_to_numpy(each.value) for each in model.weights]
    state, ledger = model.optimizer.clipping_state, ServerRounds(model, 10, 4).ledger
    all_three, two, one = (
        node.clipped_sum(sent, state, ledger, each, each, 5)[0] for each in ([0, 2, 3], [0, 2], [3])
    )
    for total, first, second in zip(all_three, two, one, strict=True):
        assert_close(total, first + second)


def changed_sums(change):
    return lambda each: each._replace(sums=[change(part) for part in each.sums])


def changed_statistics(change):
    return lambda each: each._replace(statistics=change(each.statistics, each.num_clients))


HARMS = {
    "too long": changed_sums(lambda part: 1e3 * part),
    "not a number": changed_sums(lambda part: part * np.nan),
    "another shape": changed_sums(lambda part: part[:1]),
    "text": changed_sums(lambda part: part.astype(str)),
    "dates": changed_sums(lambda part: part.astype("datetime64[s]")),
    "another strategy": changed_statistics(lambda part, count: np.zeros(3, np.float32)),
    "more votes": changed_statistics(lambda part, count: part + 3 * count),
}


def noised():
    return compiled(clipping=quantile(), noise_multiplier=1.0)


@functools.cache
def noised_nodes():
    return Nodes(noised, clients_of(SIZES))


@functools.cache
def weights_without_the_first_sum():
    server = noised()
    trained(server, noised_nodes(), changed=lambda sums: sums[1:])
    return weights(server)


@pytest.mark.parametrize("name", HARMS)
def test_sums_that_cannot_be_are_left_out(name, caplog):
    server = noised()
    trained(server, noised_nodes(), changed=lambda sums: [HARMS[name](sums[0]), *sums[1:]])
    assert "left out of this round" in caplog.text
    assert_close([weights(server)], [weights_without_the_first_sum()], 1e-7)


def in_the_corner(each):
    """Sums as long as the norm, and slots as full as they get."""
    sums = [np.zeros_like(part) for part in each.sums]
    sums[0].flat[0] = 0.2 * each.num_clients
    statistics = np.full_like(each.statistics, 0.5**0.5 * each.num_clients)
    return NodeSum(sums, statistics, each.num_clients)


def test_a_sum_whose_slots_cannot_fit_is_left_out(caplog):
    def build():
        return compiled(clipping=ka.clipping.SlaClip(0.2, 2, 1e-6))

    changed = {"changed": lambda sums: [in_the_corner(sums[0]), *sums[1:]]}
    trained(build(), Nodes(build, clients_of(SIZES)), 1, **changed)
    assert caplog.text.count("left out of this round") == 1
    assert "longer than clipping allows" in caplog.text


def test_nodes_of_another_model_or_strategy_are_refused():
    node = NodeTraining(compiled(clipping=0.2), clients_of(SIZES), MADE_UP)
    server = compiled([keras.Input((4,)), layers.Dense(3)], clipping=0.2)
    server.optimizer.build(server.trainable_variables)
    ledger = ServerRounds(server, 10, 4).ledger
    sent = [ops.convert_to_numpy(each.value) for each in server.weights]
    with pytest.raises(ValueError, match="weight"):
        node.clipped_sum(sent, server.optimizer.clipping_state, ledger, [0], [0], 1)
    sent = [ops.convert_to_numpy(each.value) for each in node.model.weights]
    other = compiled(clipping=quantile())
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="another clipping strategy"):
        node.clipped_sum(sent, other.optimizer.clipping_state, ledger, [0], [0], 1)


def test_fit_on_a_model_that_was_a_node_trains_it():
    """Its ledger covers the steps of the server's."""
    clients, build = clients_of(SIZES), lambda: compiled(clipping=0.2, noise_multiplier=1.0)
    nodes = Nodes(build, clients)
    server = build()
    trained(server, nodes, num_rounds=6)
    model = nodes.trainings[2].model
    assert 1 <= model.privacy_ledger.steps < 6
    before, steps = weights(model), model.privacy_ledger.steps
    model.fit(clients, cohort_size=COHORT, steps_per_epoch=2, verbose=0)
    assert not np.allclose(before, weights(model))
    assert model.privacy_ledger.steps == steps + 2
    with pytest.raises(RuntimeError, match="Make the `NodeTraining` again"):
        model.contribute({})


ASSIGNING = [keras.Input((4,)), layers.SpectralNormalization(layers.Dense(3))]


@pytest.mark.parametrize(
    ("stack", "options", "rows", "message"),
    [
        (ASSIGNING, {}, MADE_UP[0], "assigns its state in each step"),
        (None, {}, np.zeros((8, 4), "float32"), "at least two different examples"),
        (None, {}, np.ones((1, 4), "float32"), "at least two different examples"),
        # A client with very many would make its node late, and its other clients go missing.
        (None, {"client_examples_limit": None}, MADE_UP[0], "with `client_examples_limit`"),
    ],
)
def test_models_and_rows_that_nodes_cannot_use_are_refused(stack, options, rows, message):
    with pytest.raises(ValueError, match=message):
        NodeTraining(
            compiled(stack, **options), clients_of(SIZES), (rows, np.zeros(len(rows), "int64"))
        )


def test_a_checkpoint_continues_the_run(tmp_path):
    nodes, path = noised_nodes(), tmp_path / "run.weights.h5"
    trained(noised(), nodes, num_rounds=2, checkpoint=path)
    server = noised()
    logs = trained(server, nodes, num_rounds=5, checkpoint=path)
    assert len(logs) == 3
    assert server.privacy_ledger.steps == 5
    again = noised()
    assert trained(again, nodes, num_rounds=5, checkpoint=path) == []
    assert_close([weights(again)], [weights(server)], 1e-7)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.weights.h5"]


def test_a_round_is_in_the_checkpoint_before_a_callback_sees_its_weights(tmp_path):
    path, seen = tmp_path / "run.weights.h5", []

    class Looks(keras.callbacks.Callback):
        def look(self):
            saved = noised()
            saved.load_weights(path)
            assert_close([weights(saved)], [weights(self.model)], 1e-7)
            seen.append(saved.privacy_ledger.steps)

        def on_train_batch_end(self, batch, logs=None):
            self.look()

        def on_epoch_end(self, epoch, logs=None):
            self.look()

    trained(noised(), noised_nodes(), num_rounds=2, callbacks=[Looks()], checkpoint=path)
    assert seen == [1, 1, 2, 2]


def test_two_servers_on_one_checkpoint_lose_no_round(tmp_path):
    nodes, path = noised_nodes(), tmp_path / "run.weights.h5"
    servers = [noised(), noised()]
    rounds = [ServerRounds(each, len(SIZES), COHORT, checkpoint=path) for each in servers]
    with rounds[0].run(5), rounds[1].run(5):
        for _ in range(2):
            rounds[0].end_round(nodes.sums(servers[0], rounds[0].begin_round(), rounds[0].ledger))
        rounds[1].begin_round()
        with pytest.raises(RuntimeError, match="else has written the checkpoint"):
            rounds[1].end_round([])
        rounds[0].begin_round()
        rounds[0].end_round([])
    left = noised()
    left.load_weights(path)
    assert left.privacy_ledger.steps == 3


def test_a_round_without_an_answer_is_counted_once_and_noised():
    server = compiled(clipping=0.2, noise_multiplier=1.0)
    rounds, before = ServerRounds(server, len(SIZES), COHORT), weights(server)
    with rounds.run(3):
        rounds.begin_round()
        rounds.end_round([])
        with pytest.raises(RuntimeError, match="ended once"):
            rounds.end_round([])
    assert server.privacy_ledger.steps == 1
    assert not np.allclose(before, weights(server))


def test_servers_that_cannot_run_are_refused(tmp_path):
    for path in (tmp_path / "run.keras", tmp_path / "no" / "run.weights.h5"):
        with pytest.raises(ValueError, match=r"ends in '.weights.h5', in a folder that exists"):
            ServerRounds(compiled(), 10, 4, checkpoint=path)
    rounds = ServerRounds(compiled([layers.Dense(3)]), 10, 4)
    with pytest.raises(ValueError, match="no examples that would tell the shapes"):
        rounds.run(2).__enter__()
    with pytest.raises(RuntimeError, match=r"inside of `ServerRounds.run`"):
        rounds.begin_round()
    with pytest.raises(ValueError, match="cohort_size"):
        ServerRounds(compiled(), 10, 11)
    with pytest.raises(TypeError, match="FederatedModel"):
        ServerRounds(keras.Sequential([layers.Dense(3)]), 10, 4)
    with pytest.raises(ValueError, match="Give `checkpoint` instead"):
        ServerRounds(compiled(), 10, 4, [keras.callbacks.BackupAndRestore(tmp_path)])
    other = compiled()
    other.save_weights(tmp_path / "other.weights.h5")
    rounds = ServerRounds(other, 10, 4, checkpoint=tmp_path / "other.weights.h5")
    with pytest.raises(ValueError, match="not written by rounds over nodes"):
        rounds.run(2).__enter__()
