"""PlannedMomentum: its formula, its walk, and what it needs."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.optimizers.planning import compiled, data, fit, plan_of

PlannedMomentum = ka.optimizers.PlannedMomentum


def private(**options):
    return ka.optimizers.DPOptimizer(PlannedMomentum(), **{"noise_multiplier": 1.0, **options})


def built(optimizer, *variables):
    optimizer.build(variables)
    return optimizer


def test_it_serves_any_private_optimizer_that_knows_the_number_of_steps():
    model = compiled(private())
    batches = (data(20) for _ in range(10))
    with pytest.raises(ValueError, match=r"fit\(steps_per_epoch="):
        model.fit(batches, num_examples=200, verbose=0)
    assert model.privacy_ledger.steps == 0
    fit(model, epochs=2, batch_size=20)
    assert plan_of(model) == (0, 20, 20)
    with pytest.raises(ValueError, match="a single batch has no plan"):
        model.train_on_batch(*data(8))


def test_it_needs_a_plan_and_the_noise():
    optimizer = built(PlannedMomentum(), keras.Variable(np.ones((2, 2))))
    gradients = [keras.ops.ones((2, 2))]
    with pytest.raises(ValueError, match=r"call `begin\(num_steps\)` first"):
        optimizer.apply_noised(gradients, [1.0])
    optimizer.begin(3)
    with pytest.raises(ValueError, match="only a `DPOptimizer` knows"):
        optimizer.apply(gradients)


class Rescaled(ka.clipping.FixedClipping):
    """Gradients in other units than the noise."""

    def gradients(self, state, means):
        return [2.0 * mean for mean in means]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0}, "there is none"),
        ({"clipping": ka.clipping.AdaClip()}, "`AdaClip` rescales"),
        ({"clipping": Rescaled(1.0)}, "`Rescaled` rescales"),
    ],
)
def test_noise_in_other_units_or_none_is_refused_before_training(arguments, message):
    model = compiled(private(seed=1, **arguments))
    with pytest.raises(ValueError, match=message):
        fit(model, batch_size=30)
    assert model.privacy_ledger.steps == 0


def test_steps_follow_the_formula():
    """Each variable has its noise and its energy; the last two steps are beyond the plan."""
    rng = np.random.default_rng(1)
    variables = [keras.Variable(rng.normal(size=shape)) for shape in ((3, 2), (2,), (2, 4, 5))]
    optimizer = built(PlannedMomentum(noise_walk=2.0, momentum=0.8), *variables)
    optimizer.begin(6)
    values = [np.array(keras.ops.convert_to_numpy(v.value), np.float64) for v in variables]
    velocities, energies, stddevs = [0.0] * 3, np.zeros(3), [0.1, 3.0, 0.5]
    for step in range(8):
        gradients = [rng.normal(size=v.shape) + 1.0 for v in values]
        given = [keras.ops.convert_to_tensor(g, "float32") for g in gradients]
        optimizer.apply_noised(given, stddevs)
        ratios = [g / s for g, s in zip(gradients, stddevs, strict=True)]
        energies = 0.99 * energies + 0.01 * np.array([np.mean(r**2) for r in ratios])
        of_signal = np.maximum(energies / (1 - 0.99 ** (step + 1)) - 1, 0)
        rates = 2.0 * np.sqrt(3 / 6) * max(1 - step / 6, 0) / np.sqrt(1 + of_signal / 4)
        moves = [0.2 * rate * r for rate, r in zip(rates, ratios, strict=True)]
        velocities = [0.8 * v - m for v, m in zip(velocities, moves, strict=True)]
        values = [w + v for w, v in zip(values, velocities, strict=True)]
        for variable, value in zip(variables, values, strict=True):
            found = keras.ops.convert_to_numpy(variable.value)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


# The first variable of the latter is a bias of two axes, as that of a GRU.
@pytest.mark.parametrize(
    ("shape", "names", "walk"),
    [
        ((9,), ["kernel"], 0.5),
        ((10_000,), ["kernel"], 0.34),
        ((160_000,), ["kernel"], 0.17),
        ((5_000, 1), ["bias", "kernel"], 0.34),
        ((2_000, 1), ["bias", *["kernel"] * 4], 0.34),
        ((588, 1), ["bias", *["kernel"] * 16], 0.17),
    ],
)
def test_the_walk_falls_with_the_number_of_weights_and_of_kernels(shape, names, walk):
    variables = [keras.Variable(np.ones(shape), name=name) for name in names]
    optimizer = built(PlannedMomentum(), *variables)
    assert float(optimizer.learning_rate) == pytest.approx(walk, rel=1e-3)


def test_the_walk_with_short_floats():
    keras.config.set_floatx("bfloat16")
    optimizer = built(PlannedMomentum(), keras.Variable(np.ones((10_000,))))
    found = float(keras.ops.cast(optimizer.learning_rate, "float32"))
    assert found == pytest.approx(0.34, rel=0.01)
    assert optimizer.get_config()["noise_walk"] is None


@pytest.mark.parametrize("walk", [None, 2.0])
def test_the_noise_moves_a_weight_by_the_planned_walk(walk):
    weights = keras.Variable(np.full((100, 100), 0.3))
    optimizer = built(PlannedMomentum(walk), weights)
    optimizer.begin(200)
    rng = np.random.default_rng(2)
    for _ in range(200):
        noise = rng.normal(scale=7.0, size=weights.shape).astype("float32")
        optimizer.apply_noised([keras.ops.convert_to_tensor(noise)], [7.0])
    moved = keras.ops.convert_to_numpy(weights.value) - 0.3
    assert moved.std() == pytest.approx(walk or 0.34, rel=0.03)
    assert optimizer.get_config()["noise_walk"] == walk


@pytest.mark.parametrize("kind", ["trained", "new layer", "LoRA"])
def test_trained_weights_move_by_a_share_of_their_size(kind):
    """Beside new layers and LoRA, which have a variable of zeros, by the whole walk."""
    model = keras.Sequential([keras.Input((6,)), *map(keras.layers.Dense, (50, 40))])
    rng = np.random.default_rng(3)
    for number, variable in enumerate(model.weights if kind != "new layer" else model.weights[:3]):
        variable.assign(rng.normal(scale=0.1 * (number + 1), size=variable.shape))
    if kind == "LoRA":
        model.layers[1].enable_lora(20)
    variables = model.trainable_variables
    before = [keras.ops.convert_to_numpy(each.value).copy() for each in variables]
    optimizer = built(PlannedMomentum(0.4, pretrained=True), *variables)
    optimizer.begin(100)
    for _ in range(100):
        noise = [rng.normal(scale=7.0, size=each.shape).astype("float32") for each in variables]
        optimizer.apply_noised([*map(keras.ops.convert_to_tensor, noise)], [7.0] * len(noise))
    for variable, first in zip(variables, before, strict=True):
        moved = (keras.ops.convert_to_numpy(variable.value) - first).std()
        expected = 0.1 * np.sqrt(np.mean(first**2)) if kind == "trained" else 0.4
        assert moved == pytest.approx(expected, rel=0.4)


def share_of_walk(optimizer):
    """Return the first step over that of weights that have not been trained before."""
    optimizer._energies.assign(np.zeros(optimizer._energies.shape))
    rates = optimizer._rates(keras.ops.ones(len(optimizer._trainable_variables)))
    steps = optimizer._num_steps.value
    return keras.ops.convert_to_numpy(rates / (0.1 * keras.ops.sqrt(3.0 / steps)))


def test_trained_weights_never_move_further_than_random_ones():
    large = keras.Variable(np.full((10, 10), 9.0))
    optimizer = built(PlannedMomentum(pretrained=True), large)
    optimizer.begin(4)
    assert share_of_walk(optimizer) == pytest.approx(1.0)


def test_the_size_of_trained_weights_is_that_before_the_first_step():
    """They may be loaded when there is an optimizer, and the walk may be set later."""
    weights = keras.Variable(np.zeros((2, 2)))
    optimizer = built(PlannedMomentum(0.4, pretrained=True), weights)
    weights.assign(np.full((2, 2), 2.0))
    optimizer.begin(4)
    assert share_of_walk(optimizer) == pytest.approx(0.2 / 0.4)
    optimizer.learning_rate = 0.8
    assert share_of_walk(optimizer) == pytest.approx(0.2 / 0.8)
    optimizer.learning_rate = 0.1
    assert share_of_walk(optimizer) == pytest.approx(1.0)
    optimizer.learning_rate = 0.4
    optimizer.apply_noised([keras.ops.ones((2, 2))], [1.0])
    weights.assign(np.full((2, 2), 9.0))
    optimizer.begin(5)
    assert share_of_walk(optimizer) == pytest.approx(0.2 / 0.4)


def test_weights_that_come_after_the_optimizer_was_built_are_trained_weights():
    model = compiled(ka.optimizers.AutoDPOptimizer(2.0, pretrained=True))
    model.compile_from_config(model.get_compile_config())
    assert model.optimizer.built
    model.set_weights([np.full(each.shape, 0.5) for each in model.weights])
    fit(model, epochs=1)
    inner = model.optimizer.inner_optimizer
    walks = next(each for each in inner.variables if each.name == "most_walks")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(walks.value), 0.05, rtol=1e-6)
