"""The oracle of `untuned.py` for large data: many models at once, on one accelerator with JAX.

    KERAS_BACKEND=jax python benchmarks/accuracy/untuned_oracle.py plan --data FOLDER
    KERAS_BACKEND=jax python benchmarks/accuracy/untuned_oracle.py run --data FOLDER

`plan` finds the noise of each setting, on the CPU; `run` makes the runs that are missing and adds
them to the same table. The settings, networks, examples, sampling and updates are those of
`untuned.py run --ways oracle`. Only the loop is another one: 180 runs of 50,000 images take minutes
instead of hours. `--check` makes runs again that the table has, and prints both accuracies.
"""

import argparse
import csv
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.accuracy import untuned

_NOISE = untuned._ROOT / "benchmarks" / "utility" / "untuned_noise.json"
# Examples of all models of one step, with the room for batches that are larger than expected.
_MOST_AT_ONCE = 8192


def convolution(layer: Any, inputs: Any, kernel: Any) -> Any:
    """A convolution as a product of matrices, which many models with their own kernels share."""
    (height, width), (rows, columns) = layer.kernel_size, layer.strides
    padding = jax.lax.padtype_to_pads(
        inputs.shape[1:3], (height, width), (rows, columns), layer.padding.upper()
    )
    inputs = jnp.pad(inputs, ((0, 0), *padding, (0, 0)))
    down = (inputs.shape[1] - height) // rows + 1
    across = (inputs.shape[2] - width) // columns + 1
    parts = [
        inputs[
            :, i : i + rows * (down - 1) + 1 : rows, j : j + columns * (across - 1) + 1 : columns
        ]
        for i in range(height)
        for j in range(width)
    ]
    matrix = jnp.reshape(jnp.asarray(kernel), (-1, kernel.shape[-1]))
    return jnp.concatenate(parts, axis=-1) @ matrix


def recurrence(
    layer: Any, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = None
) -> Any:
    """A `GRU` whose gradients are summed over time in one product."""
    kernel, recurrent, bias = (jnp.asarray(weight) for weight in layer.cell.trainable_variables)
    return _states(recurrent, bias[1], sequences @ kernel + bias[0])[:, 1:]


def _cell(state: Any, inner: Any, outer: Any) -> Any:
    (update, reset, new), (outer_update, outer_reset, outer_new) = (
        jnp.split(each, 3, axis=-1) for each in (inner, outer)
    )
    update = jax.nn.sigmoid(update + outer_update)
    new = jnp.tanh(outer_new + jax.nn.sigmoid(reset + outer_reset) * new)
    return update * state + (1 - update) * new


@jax.custom_vjp
def _states(recurrent: Any, bias: Any, outer: Any) -> Any:
    """The states before and after each step, shape `(batch, steps + 1, units)`."""

    def one(state: Any, part: Any) -> Any:
        state = _cell(state, state @ recurrent + bias, part)
        return state, state

    start = jnp.zeros((len(outer), recurrent.shape[0]))
    _, states = jax.lax.scan(one, start, jnp.swapaxes(outer, 0, 1))
    return jnp.swapaxes(jnp.concatenate([start[None], states]), 0, 1)


def _states_forward(recurrent: Any, bias: Any, outer: Any) -> Any:
    states = _states(recurrent, bias, outer)
    return states, (recurrent, bias, outer, states)


def _states_backward(kept: Any, grads: Any) -> Any:
    recurrent, bias, outer, states = kept
    before = states[:, :-1]
    parts = [jnp.swapaxes(each, 0, 1) for each in (before, outer, grads[:, 1:])]

    def one(grad: Any, part: Any) -> Any:
        state, outer_part, own = part
        _, pull = jax.vjp(_cell, state, state @ recurrent + bias, outer_part)
        direct, inner, outer_grad = pull(grad + own)
        return direct + inner @ recurrent.T, (inner, outer_grad)

    _, found = jax.lax.scan(one, jnp.zeros_like(before[:, 0]), parts, reverse=True)
    inner, outer_grad = (jnp.swapaxes(each, 0, 1) for each in found)
    return jnp.einsum("bti,btj->ij", before, inner), jnp.sum(inner, axis=(0, 1)), outer_grad


_states.defvjp(_states_forward, _states_backward)


def weights_of(task: str, number: int) -> tuple[Any, list[Any]]:
    """The network of a task, and its initial weights for a seed."""
    keras.utils.set_random_seed(number)
    network = keras.Sequential(untuned.TASKS[task][1]())
    return network, [variable.value for variable in network.trainable_variables]


class Group:
    """Models with one batch size that train side by side.

    Args:
        task: name of the task.
        batch_size: expected size of the batches.
        num_examples: number of examples to train on.
        most: number of models.
        starts: initial weights by the seed.
    """

    def __init__(
        self, task: str, batch_size: int, num_examples: int, most: int, starts: dict[int, list[Any]]
    ) -> None:
        self.num_examples, self.batch_size, self.starts = num_examples, batch_size, starts
        room = batch_size + 4 * math.sqrt(batch_size)
        self.room = min(8 * math.ceil(room / 8), num_examples)
        self.num_models = max(1, min(most, _MOST_AT_ONCE // self.room))
        self.network, _ = weights_of(task, 0)
        self.fixed = [variable.value for variable in self.network.non_trainable_variables]

    def logits(self, weights: Any, x: Any) -> Any:
        """The network's outputs, shape `(batch_size, ..., num_classes)`."""
        return self.network.stateless_call(weights, self.fixed, x)[0]

    def example_loss(self, weights: Any, x: Any, y: Any) -> Any:
        """The loss of one example."""
        logs = jax.nn.log_softmax(self.logits(weights, x[None])[0])
        return -jnp.mean(jnp.take_along_axis(logs, y[..., None], axis=-1))

    def drawn(self, key: Any) -> tuple[Any, Any]:
        """Indices of a Poisson sample, by the gaps between its members, and which are real."""
        uniform = jax.random.uniform(key, (self.room,), minval=1e-12)
        rate = math.log1p(-self.batch_size / self.num_examples)
        gaps = 1 + jnp.floor(jnp.log(uniform) / rate).astype(jnp.int32)
        places = jnp.cumsum(jnp.minimum(gaps, self.num_examples)) - 1
        return jnp.minimum(places, self.num_examples - 1), places < self.num_examples

    def noised(self, weights: Any, setting: Any, key: Any, x: Any, y: Any) -> Any:
        """The noised mean of the clipped gradients of a sample."""
        key, own = jax.random.split(key)
        rows, is_real = self.drawn(own)
        grads = jax.vmap(jax.grad(self.example_loss), (None, 0, 0))(weights, x[rows], y[rows])
        squares = sum(jnp.sum(g.reshape(self.room, -1) ** 2, axis=1) for g in grads)
        factors = is_real * jnp.minimum(1.0, setting["clip_norm"] / jnp.sqrt(squares + 1e-24))
        scale = setting["noise"] * setting["clip_norm"]
        keys = jax.random.split(key, len(grads))
        return [
            (jnp.tensordot(factors, g, 1) + scale * jax.random.normal(own, g.shape[1:]))
            / self.batch_size
            for own, g in zip(keys, grads, strict=True)
        ]

    def step(self, number: Any, state: Any, setting: Any, x: Any, y: Any) -> Any:
        """One step of one model, if it has not trained long enough."""
        weights, first, second, key = state
        key, own = jax.random.split(key)
        grads = self.noised(weights, setting, own, x, y)
        rate, is_adam = setting["learning_rate"], setting["is_adam"]
        done = number + 1.0
        adam_rate = rate * jnp.sqrt(1 - 0.999**done) / (1 - 0.9**done)
        is_on = number < setting["steps"]

        def moved(w: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
            new_m = jnp.where(is_adam, 0.9 * m + 0.1 * g, 0.9 * m - rate * g)
            new_v = 0.999 * v + 0.001 * g * g
            change = jnp.where(is_adam, -adam_rate * new_m / (jnp.sqrt(new_v) + 1e-7), new_m)
            return w + is_on * change, new_m, new_v

        parts = [moved(*each) for each in zip(weights, first, second, grads, strict=True)]
        return (*map(list, zip(*parts, strict=True)), key)

    def trained(self, weights: Any, keys: Any, settings: Any, x: Any, y: Any) -> Any:
        """The weights of all models after their steps."""
        zeros = [jnp.zeros_like(w) for w in weights]
        step = jax.vmap(self.step, (None, 0, 0, None, None))

        def one(number: Any, state: Any) -> Any:
            return step(number, state, settings, x, y)

        start = (weights, zeros, zeros, keys)
        return jax.lax.fori_loop(0, jnp.max(settings["steps"]), one, start)[0]

    def accuracies(self, weights: Any, x: Any, y: Any) -> Any:
        """The accuracy of each model."""

        def of_one(own: Any) -> Any:
            def of_part(part: Any) -> Any:
                return jnp.sum(jnp.argmax(self.logits(own, part[0]), axis=-1) == part[1])

            # The last part repeats an example of no label that a model can give.
            missing = -len(x) % 500
            rows = np.arange(len(x) + missing).clip(max=len(x) - 1)
            labels = jnp.where(
                (np.arange(len(rows)) < len(x)).reshape(-1, *[1] * (y.ndim - 1)), y[rows], -1
            )
            parts = (x[rows].reshape(-1, 500, *x.shape[1:]), labels.reshape(-1, 500, *y.shape[1:]))
            return jnp.sum(jax.lax.map(of_part, parts)) / y.size

        return jax.lax.map(of_one, weights)

    def prepare(self, parts: list[Any]) -> Any:
        """Compile the run of these models."""

        def run(weights: Any, keys: Any, settings: Any, parts: Any) -> Any:
            end = self.trained(weights, keys, settings, *parts[0])
            return [self.accuracies(end, *part) for part in parts[1:]]

        inputs = self.inputs_of([({"number": 0, "epsilon": 1.0}, 1.0)] * self.num_models)
        return jax.jit(run).lower(*inputs, parts).compile()

    def inputs_of(self, pairs: list[Any]) -> tuple[Any, Any, Any]:
        """The initial weights, keys and settings of runs."""
        steps_of_epoch = math.ceil(self.num_examples / self.batch_size)
        settings = [pair[0] for pair in pairs]
        columns = {
            "learning_rate": [each.get("learning_rate", 1.0) for each in settings],
            "clip_norm": [each.get("clip_norm", 1.0) for each in settings],
            "noise": [noise for _, noise in pairs],
        }
        values = {name: np.asarray(each, "float32") for name, each in columns.items()}
        values["is_adam"] = np.asarray([each.get("optimizer") == "adam" for each in settings])
        steps = [each.get("epochs", 1) * steps_of_epoch for each in settings]
        values["steps"] = np.asarray(steps, "int32")
        starts = [self.starts[each["number"]] for each in settings]
        weights = [jnp.stack(each) for each in zip(*starts, strict=True)]
        keys = jnp.stack(
            [jax.random.key(1000 * each["number"] + int(each["epsilon"])) for each in settings]
        )
        return weights, keys, values


def plan(options: argparse.Namespace) -> None:
    """Find the noise of each setting."""
    import keras_adaclip as ka

    found = json.loads(options.noise.read_text()) if options.noise.exists() else {}
    for task in options.tasks:
        (x, _), *_ = untuned.split(*untuned.TASKS[task][0](options.data))
        for number in range(untuned.NUM_SETTINGS):
            setting = _setting(task, number, len(x))
            for epsilon in untuned.EPSILONS:
                name = f"{epsilon} {len(x)} {setting['batch_size']} {setting['epochs']}"
                if name not in found:
                    found[name] = ka.accounting.calibrate_noise_multiplier(
                        epsilon,
                        len(x) ** -1.1,
                        len(x),
                        setting["batch_size"],
                        epochs=setting["epochs"],
                    )
                    options.noise.write_text(json.dumps(found, indent=0))
    print(f"{len(found)} noise multipliers in {options.noise}")


def _setting(task: str, number: int, num_examples: int) -> dict[str, Any]:
    epochs = untuned._FEWER_EPOCHS.get(task, untuned.EPOCHS)
    return untuned.random_setting(number, num_examples, epochs)


def run(options: argparse.Namespace) -> None:
    """Make the runs of all tasks that are missing."""
    keras.layers.Conv2D.convolution_op = convolution
    keras.layers.GRU.call = recurrence
    noise = json.loads(options.noise.read_text())
    rows = [row for row in untuned.read(untuned._RESULTS) if row["way"] == "oracle"]
    known = {(row["task"], float(row["epsilon"]), int(row["number"])): row for row in rows}
    for task in options.tasks:
        parts = untuned.split(*untuned.TASKS[task][0](options.data))
        num_examples = len(parts[0][0])
        pairs: dict[int, list[Any]] = {}
        for number in range(untuned.NUM_SETTINGS):
            setting = _setting(task, number, num_examples)
            for epsilon in options.epsilons:
                if ((task, epsilon, number) in known) == options.check:
                    name = f"{epsilon} {num_examples} {setting['batch_size']} {setting['epochs']}"
                    each = {**setting, "number": number, "epsilon": epsilon}
                    pairs.setdefault(setting["batch_size"], []).append((each, noise[name]))
        numbers = range(untuned.NUM_SETTINGS)
        starts = {number: weights_of(task, number)[1] for number in numbers}
        sizes = sorted(pairs, reverse=True)
        groups = {size: Group(task, size, num_examples, len(pairs[size]), starts) for size in sizes}
        put = jax.device_put([tuple(part) for part in parts])
        with ThreadPoolExecutor(len(sizes) or 1) as pool:
            programs = {size: pool.submit(groups[size].prepare, put) for size in sizes}
            for size in sizes:
                _run_group(task, groups[size], programs[size].result(), pairs[size], put, options)


def _run_group(
    task: str, group: Group, program: Any, pairs: list[Any], parts: Any, options: argparse.Namespace
) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0]["epochs"])
    for first in range(0, len(pairs), group.num_models):
        now = pairs[first : first + group.num_models]
        padded = [*now, *[now[-1]] * (group.num_models - len(now))]
        began = time.perf_counter()
        held_out, test = map(np.asarray, program(*group.inputs_of(padded), parts))
        seconds = (time.perf_counter() - began) / len(now)
        with options.output.open("a", newline="") as file:
            for (setting, _), on_held_out, on_test in zip(now, held_out, test, strict=False):
                names = ("optimizer", "learning_rate", "clip_norm", "batch_size", "epochs")
                row = [
                    task,
                    setting["epsilon"],
                    "oracle",
                    setting["number"],
                    json.dumps({name: setting[name] for name in names}),
                    round(100 * float(on_held_out), 2),
                    round(100 * float(on_test), 2),
                    round(seconds, 1),
                    "jax",
                ]
                csv.writer(file, lineterminator="\n").writerow(row)
                print(*row, flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("command", choices=("plan", "run"))
    add("--data", type=Path, default=Path("."), help="folder of the .npz files")
    add("--tasks", nargs="+", choices=untuned.TASKS, default=["fashion-tanh", "fashion-relu"])
    add("--epsilons", nargs="+", type=float, default=list(untuned.EPSILONS))
    add("--noise", type=Path, default=_NOISE, help="file of the noise multipliers")
    add("--check", action="store_true", help="make the runs again that the table has")
    add("--output", type=Path, default=untuned._RESULTS)
    options = parser.parse_args()
    {"plan": plan, "run": run}[options.command](options)


if __name__ == "__main__":
    main()
