"""Settings of the tests of gradients."""

import keras
import pytest


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly():
    """Leaves out what LLVM does for speed: on JAX, compiling is most of what these tests take."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
