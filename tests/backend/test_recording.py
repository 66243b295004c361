"""Functions that are recorded once and repeated from the record."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip import backend

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="others compile steps")

SHAPES = ((4, 2), (3, 4), (3, 2))


class Counted:
    def __init__(self, function):
        self.function = function
        self.num_calls = 0

    def __call__(self, values):
        self.num_calls += 1
        return self.function(values)


def gradient_step(values):
    weights, x, y = values

    def loss(weights):
        return torch.nn.functional.mse_loss(torch.tanh(x @ weights), y)

    gradient = torch.func.grad(loss)(weights)
    return [weights - 0.5 * gradient, torch.ones_like(y).sum() * loss(weights)]


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def check(recording, function, values):
    torch.testing.assert_close(recording.call(function, values), function.function(values))


def test_other_numbers_give_what_the_function_gives_and_other_shapes_are_recorded_anew():
    recording, function = backend.Recording(), Counted(gradient_step)
    for shapes in (SHAPES, ((4, 2), (5, 4), (5, 2))):
        calls = function.num_calls
        check(recording, function, draw(*shapes))
        assert function.num_calls > calls
        calls = function.num_calls
        for seed in range(1, 5):
            check(recording, function, draw(*shapes, seed=seed))
            check(recording, function, draw(*SHAPES, seed=seed))
        assert function.num_calls == calls
    broken = draw(*SHAPES)
    broken[1][0, 0] = float("nan")
    assert torch.isnan(recording.call(function, broken)[0]).any()


@pytest.mark.parametrize(
    "function",
    [
        lambda values: [values[0] * (2.0 if values[0].sum() > 0 else -1.0)],
        lambda values: [values[0] * float(values[0][0])],
        lambda values: [values[0] + torch.rand(3)],
        lambda values: [values[0] * torch.from_numpy(values[0].numpy())],
        lambda values: [values[0] * (2.0 if np.asarray(values[0]).mean() > 0.0 else -1.0)],
        lambda values: [values[0] * float(ops.convert_to_numpy(torch.argmax(values[0])))],
        lambda values: [values[0].sum() / values[0][values[0] > 0].shape[0]],
        lambda values: [values[0] / torch.unique(values[0] > 0).shape[0]],
    ],
    ids=["decides", "reads", "draws", "leaves", "array", "integer", "mask", "unique"],
)
def test_what_follows_from_values_outside_of_pytorch_is_computed_anew(function):
    recording, counted = backend.Recording(), Counted(function)
    for seed in range(6):
        (values,) = draw((3,), seed=seed)
        torch.manual_seed(seed)
        (found,) = recording.call(counted, [values])
        torch.manual_seed(seed)
        torch.testing.assert_close(found, function([values])[0])


@pytest.mark.parametrize("count", [lambda kept: len(torch.nonzero(kept)), lambda kept: kept.sum()])
def test_a_count_in_a_gradient_is_not_that_of_the_first_call(count):
    """Turned around, as the trial of a record has them, the numbers have the same count."""

    def function(values):
        numbers, kept = values
        return [torch.func.grad(lambda each: each.sum() / count(kept))(numbers)]

    recording, function = backend.Recording(), Counted(function)
    numbers = torch.arange(1.0, 6.0)
    check(recording, function, [numbers, torch.tensor([1, 0, 0, 0, 0])])
    check(recording, function, [numbers, torch.tensor([1, 1, 1, 0, 1])])


def test_results_and_arguments_are_not_written_over():
    def function(values):
        total = torch.zeros(3)
        total += values[0]
        ones = torch.ones_like(values[0])
        ones[0] = 5.0
        return [total, ones, ones * values[0], values[0][:2] - 1.0]

    recording, counted, kept = backend.Recording(), Counted(function), []
    for seed in range(4):
        values = draw((3,), seed=seed)
        copies = [value.clone() for value in values]
        check(recording, counted, values)
        torch.testing.assert_close(values, copies)
        found = recording.call(counted, values)
        kept.append((found, [each.clone() for each in found]))
    for found, copies in kept:
        torch.testing.assert_close(found, copies)
    found[0] += 7.0
    found[1] += 7.0
    check(recording, counted, draw((3,)))


def test_a_first_call_with_numbers_that_are_not_finite_proves_nothing():
    numbers = itertools.count(1)
    recording = backend.Recording()
    function = Counted(lambda values: [values[0] * next(numbers)])
    recording.call(function, [torch.full((3,), float("nan"))])
    calls = function.num_calls
    recording.call(function, draw((3,)))
    assert function.num_calls == calls + 1


def test_a_cleared_record_serves_another_function_and_one_that_fails_is_called_each_time():
    recording = backend.Recording()
    check(recording, Counted(lambda values: [2.0 * values[0]]), draw((3,)))
    recording.clear()
    for seed in range(2):
        check(recording, Counted(lambda values: [3.0 * values[0]]), draw((3,), seed=seed))
    # It fails for any other numbers than these.
    failing = Counted(lambda values: [torch.linalg.cholesky(torch.diag(values[0] - 0.9))])
    recording.clear()
    for _ in range(2):
        check(recording, failing, [torch.ones(3)])


@pytest.mark.parametrize("is_read", [False, True])
def test_a_variable_from_outside_counts_as_it_is_now(is_read):
    """Such as one that a callback sets between rounds, whether Python reads it or PyTorch."""
    outside = keras.Variable(np.float32(2.0), trainable=False)
    recording = backend.Recording()
    function = Counted(lambda v: [v[0] * (float(outside.value) if is_read else ops.exp(outside))])
    for seed, number in enumerate((2.0, 0.5)):
        outside.assign(number)
        check(recording, function, draw((3,), seed=seed))
