"""What tests and doctests share: quiet, reproducible runs on the backend KERAS_BACKEND names."""

import gc
import importlib.util
import os
import sys

# Before the first import of a backend.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# oneDNN's kernels for half precision use instructions that some virtual machines announce and do
# not run (SIGILL).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Workers share the cores; PyTorch would start as many threads in each as there are cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# JAX writes its cache file by file, with no lock: each process has its own.
if (cache := os.environ.get("JAX_COMPILATION_CACHE_DIR")) and "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{cache}/{os.environ['PYTEST_XDIST_WORKER']}"

import pytest

BACKENDS = ("tensorflow", "jax", "torch")
# What the files of a folder import.
LIBRARIES = {"flower": "flwr"}


def running_backend() -> str:
    """The backend of this process, without importing Keras where the environment names it."""
    if name := os.environ.get("KERAS_BACKEND"):
        return name
    import keras

    return keras.backend.backend()


def pytest_ignore_collect(collection_path, config):
    """Leaves the other backends' files out of the doctests: they would import their backends."""
    others = set(BACKENDS) - {running_backend()}
    if collection_path.parts[-3:-1] == ("keras_adaclip", "backend"):
        return collection_path.name in others or None
    library = LIBRARIES.get(collection_path.parent.name)
    if library and collection_path.name != "__init__.py":
        return importlib.util.find_spec(library) is None or None
    return None


def pytest_collection_finish(session):
    """Lets the garbage collector pass by what stays to the end, a framework for one."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config):
    return f"keras backend: {running_backend()}"


@pytest.fixture(autouse=True)
def _fresh_keras():
    """Starts every test with no graph left over, the same random numbers and float32."""
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(20240229)
    yield
    if keras is not None:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True, scope="module")
def _free_memory():
    """Returns the compiled functions of a module's tests before the next module starts."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session(free_memory=True)
