"""Runs the first example of the README where the wheel alone is installed. Run by `make package`.

    KERAS_BACKEND=jax python tests/packaging/first_example.py

needs an environment in which `keras-adaclip[jax]` was installed from the wheel. The example gets a
few made-up images of Fashion-MNIST's shape, so that it downloads nothing and ends after seconds.
Without the extras the package must name the one that is needed.
"""

import os
import re
from pathlib import Path

import keras
import numpy as np

import keras_adaclip as ka

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def made_up_images():
    """Return what `keras.datasets.fashion_mnist.load_data` returns, smaller and of no meaning."""
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 256, (size, 28, 28), np.uint8), rng.integers(0, 10, size).astype("uint8"))
        for size in (2048, 64)
    ]


def main() -> None:
    """Look at the installation, then train."""
    installed = Path(ka.__file__).resolve()
    assert ROOT / "keras_adaclip" not in installed.parents, f"not from the wheel: {installed}"
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    assert (installed.parent / "py.typed").exists()
    for extra, use in (
        ("tuner", lambda: ka.tuners.GreedyClipTuner),
        ("plots", lambda: ka.plots.history({"loss": [1.0]})),
    ):
        message = ""
        try:
            use()
        except ImportError as error:
            message = str(error)
        assert f"keras-adaclip[{extra}]" in message, f"expected no extra. Received: {message!r}"

    keras.datasets.fashion_mnist.load_data = made_up_images
    keras.utils.disable_interactive_logging()
    example = re.search(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)[1]
    names = {"__name__": "__main__"}
    exec(compile(example, "README.md", "exec"), names)
    spent = names["model"].privacy_spent(delta=1e-5)
    assert 2.5 < spent.epsilon <= 3.0
    # The last step is the release of a temperature.
    assert spent.steps == 156
    print(f"\nREADME's first example runs from {installed.parent} on {keras.backend.backend()}.")


if __name__ == "__main__":
    main()
