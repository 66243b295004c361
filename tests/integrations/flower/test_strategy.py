"""`server_strategy` and `client_app` over a grid in this process, against `fit`."""

import itertools

import keras
import numpy as np
import pytest
from flwr.app import ArrayRecord
from keras import ops

import keras_adaclip as ka
from keras_adaclip.integrations.flower import client_app, messages, server_strategy
from tests.integrations.flower.support import LocalGrid, tiny_app

# The tests compare runs from one seed.
pytestmark = pytest.mark.filterwarnings("ignore:The `DPOptimizer` has a seed:UserWarning")

app = tiny_app()
NODES = {11: 0, 12: 1, 13: 2}
_run_ids = itertools.count(1)


def weights(model):
    return [ops.convert_to_numpy(each) for each in model.weights]


def grid_of(numbers=None, client=app.client):
    return LocalGrid(client, NODES if numbers is None else numbers, next(_run_ids))


def trained(grid, num_rounds=4, model=None, **options):
    model = model or app.build_model()
    strategy = server_strategy(model, app.COHORT, **options)
    result = strategy.start(grid, num_rounds=num_rounds, timeout=1.0)
    return model, result


def in_one_process(num_rounds=4, users=range(app.NUM_USERS)):
    """Return a model that `fit` has trained, on users in the order of their digests."""
    x, y, ids = app.examples()
    users = sorted(users, key=messages.digest_of)
    clients = ka.federated.ClientData.from_arrays(x, y, ids).subset(users)
    model = app.build_model()
    model.fit(clients, cohort_size=app.COHORT, epochs=num_rounds, steps_per_epoch=1, verbose=0)
    return model


def test_the_weights_are_those_of_fit():
    model, result = trained(grid_of())
    alone = in_one_process()
    for found, expected in zip(weights(model), weights(alone), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert list(model.privacy_ledger) == list(alone.privacy_ledger)
    for found, expected in zip(result.arrays.to_numpy_ndarrays(), weights(model), strict=True):
        np.testing.assert_array_equal(found, expected)
    last = result.train_metrics_clientapp[4]
    delta = app.NUM_USERS**-1.1
    assert last["epsilon"] == pytest.approx(alone.privacy_spent(delta).epsilon)
    assert last["clip_norm"] == pytest.approx(alone.optimizer.clip_norm)


def silent(grid):
    grid.silent.add(12)


def failing(grid):
    grid.failing.add(12)


def with_nan(grid):
    def change(content):
        statistics, *sums = content["sum"].to_numpy_ndarrays()
        sums[0][0] = np.nan
        content["sum"] = ArrayRecord(numpy_ndarrays=[statistics, *sums])

    grid.changed[12] = change


def with_another_record(grid):
    grid.changed[12] = lambda content: content.clear()


@pytest.mark.parametrize("harm", [silent, failing, with_nan, with_another_record])
def test_a_node_that_fails_later_adds_nothing(harm):
    """Compared with a node that fails in another way."""
    models = []
    for each in (harm, silent):
        grid = grid_of()
        model = app.build_model()
        strategy = server_strategy(model, app.COHORT)
        ask = grid.send_and_receive

        def after_the_questions(messages, each=each, grid=grid, ask=ask, **options):
            found = ask(messages)
            each(grid)
            return found

        grid.send_and_receive = after_the_questions
        strategy.start(grid, num_rounds=3, timeout=1.0)
        assert model.privacy_ledger.steps == 3
        assert (12, "train") in grid.asked
        models.append(model)
    for found, expected in zip(*map(weights, models), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_restarted_node_takes_its_clients_back_and_new_clients_wait_for_the_next_run():
    grid = grid_of({11: 0, 12: 1})
    strategy = server_strategy(app.build_model(), app.COHORT)
    begin = strategy.configure_train

    def changed(server_round, *arguments):
        if server_round == 2:
            del grid.numbers[12]
        if server_round == 3:
            grid.numbers |= {99: 1, 13: 2}
        return begin(server_round, *arguments)

    strategy.configure_train = changed
    strategy.start(grid, num_rounds=6, timeout=1.0)
    trained_on = {node for node, kind in grid.asked if kind == "train"}
    assert trained_on == {11, 12, 99}
    assert (13, "query") in grid.asked
    (row,) = strategy.model.privacy_ledger.rows
    assert (row.steps, row.num_examples) == (6, 20)


def test_one_id_on_two_nodes_is_refused():
    with pytest.raises(ValueError, match="hold a client of the same id"):
        trained(grid_of({11: 0, 12: 0}))


def test_no_node_is_an_error_with_its_reason():
    grid = grid_of()
    grid.failing |= set(NODES)
    with pytest.raises(ValueError, match=r"0 of 3 connected nodes .* broken"):
        trained(grid)
    with pytest.raises(ValueError, match=r"2 of 2 connected .* min_nodes=3"):
        trained(grid_of({11: 0, 12: 1}), min_nodes=3)


def test_a_checkpoint_continues_the_run(tmp_path):
    path = tmp_path / "run.weights.h5"
    trained(grid_of(), num_rounds=2, checkpoint=path)
    model, result = trained(grid_of(), num_rounds=5, checkpoint=path)
    assert len(result.train_metrics_clientapp) == 3
    assert model.privacy_ledger.steps == 5


def test_rounds_outside_of_start_are_refused():
    strategy = server_strategy(app.build_model(), app.COHORT)
    with pytest.raises(RuntimeError, match="trains by `start`"):
        strategy.configure_train(1, ArrayRecord(), None, grid_of())
    assert strategy.aggregate_train(1, []) == (None, None)


# Keras's own warning is emitted again.
@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
def test_a_seed_is_warned_of():
    with pytest.warns(UserWarning, match="every node knows"):
        trained(grid_of(), num_rounds=1)


def test_answers_that_are_none_leave_the_node_out():
    grid = grid_of()
    grid.changed_answers[12] = lambda content: content.clear()
    model, _ = trained(grid, num_rounds=1)
    assert model.privacy_ledger.rows[0].num_examples == 20


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="`clients` must be a function"):
        client_app(app.build_model, app.examples(), app.MADE_UP)
    with pytest.raises(ValueError, match="min_nodes"):
        server_strategy(app.build_model(), min_nodes=0)
    unbuilt = ka.federated.FederatedSequential([keras.layers.Dense(3)])
    unbuilt.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), loss="mse")
    with pytest.raises(ValueError, match="no examples that would tell the shapes"):
        server_strategy(unbuilt, 10).start(grid_of(), timeout=1.0)
