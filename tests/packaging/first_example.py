"""Runs the first example of the README where the wheel alone is installed. Run by `make package`.

    KERAS_BACKEND=jax python tests/packaging/first_example.py

needs an environment in which `keras-adaclip[jax]` was installed from the wheel. The example is
given made-up images of Fashion-MNIST's shape, a few of them, so that it downloads nothing and ends
after seconds. What an extra brings has to be missing, and the package to say so.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import keras
import numpy as np

import keras_adaclip as ka

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXTRAS = ("keras_tuner", "matplotlib", "sklearn", "tensorflow_privacy")


def made_up_images():
    """What `keras.datasets.fashion_mnist.load_data` returns, smaller and of no meaning."""
    rng = np.random.default_rng(0)

    def split(number):
        images = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        return images, rng.integers(0, 10, number).astype(np.uint8)

    return split(2048), split(64)


def raises_import_error(call):
    """The message of the `ImportError` that a call ends with."""
    try:
        call()
    except ImportError as error:
        return str(error)
    raise AssertionError("Expected an ImportError that names the extra.")


def main() -> None:
    """Looks at the installation, then trains."""
    installed = Path(ka.__file__).resolve()
    if ROOT / "keras_adaclip" in installed.parents:
        sys.exit(f"Expected the package that was installed from the wheel. Received: {installed}")
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    assert (installed.parent / "py.typed").exists()
    brought = [name for name in EXTRAS if importlib.util.find_spec(name) is not None]
    if brought:
        sys.exit(f"Expected an environment without extras. Received one with {brought}")
    message = raises_import_error(lambda: ka.tuners.GreedyClipTuner)
    assert "keras-adaclip[tuner]" in message
    message = raises_import_error(lambda: ka.plots.history({"loss": [1.0]}))
    assert "keras-adaclip[plots]" in message

    keras.datasets.fashion_mnist.load_data = made_up_images
    keras.utils.disable_interactive_logging()
    example = re.search(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)[1]
    names = {"__name__": "__main__"}
    exec(compile(example, "README.md", "exec"), names)
    spent = names["model"].privacy_spent(delta=1e-5)
    assert 2.5 < spent.epsilon <= 3.0
    assert spent.steps == 10
    print(f"\nREADME's first example runs from {installed.parent} on {keras.backend.backend()}.")


if __name__ == "__main__":
    main()
