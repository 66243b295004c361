"""Private steps on JAX and a CPU are compiled with the scheduler that saves memory."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka

if keras.backend.backend() != "jax":
    pytest.skip("the other backends need no choice", allow_module_level=True)

import jax

from keras_adaclip.backend import jax_steps as steps

SCHEDULER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="older releases may know other options"
)


def test_private_steps_alone_are_compiled_with_the_scheduler_that_saves_memory(monkeypatch):
    jit, options = jax.jit, {}

    def recorded(function, **arguments):
        options[getattr(function, "__name__", "")] = arguments.get("compiler_options")
        return jit(function, **arguments)

    monkeypatch.setattr(jax, "jit", recorded)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for cls, optimizer in (
        (ka.PrivateSequential, ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0)),
        (keras.Sequential, "sgd"),
    ):
        model = cls([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        options.clear()
        model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=0)
        if cls is keras.Sequential:
            assert not any(options.values())
        else:
            assert options["train_step"] == SCHEDULER


@pytest.mark.parametrize("flag", ["enable_concurrency_optimized_scheduler", "scheduler_type"])
def test_xla_flags_of_the_user_decide(flag, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to= --xla_cpu_{flag}=true")
    assert steps.compiler_options() == {}


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(steps, "_SCHEDULER", {"xla_cpu_no_such_option": "1"})
    steps._is_known.cache_clear()
    assert steps.compiler_options() == {}
    steps._is_known.cache_clear()
