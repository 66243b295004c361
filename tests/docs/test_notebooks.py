"""The notebooks run on small data, and their stored output is that of a run at full size."""

import gzip
import os
import struct
import sys

import pytest

from tests.docs import smoke
from tests.docs.pages import DOCS

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# The number of figures, and words of the printed output.
SHOWN = {
    "fashion_mnist": (1, ("noise multiplier", "test accuracy", "Privacy report", "True")),
    "federated": (1, ("60 clients", "test accuracy", "A unit is one client", "600 clients")),
}


def read(path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cells):
    """The text that the cells have printed, by stream."""
    outputs = [output for cell in cells for output in cell.outputs if "text" in output]
    return {
        name: "".join(output.text for output in outputs if output.name == name)
        for name in ("stdout", "stderr")
    }


def figures(cells):
    outputs = [output for cell in cells for output in cell.outputs if "data" in output]
    return [output.data["image/png"] for output in outputs if "image/png" in output.data]


def write_fashion_mnist(folder):
    """Write random images into the files that `keras.datasets.fashion_mnist` reads."""
    folder.mkdir(parents=True)
    for name, size, seed in (("train", 600, 0), ("t10k", 100, 1)):
        x, y = smoke.images(size, seed)
        for kind, values in (("images-idx3", x), ("labels-idx1", y)):
            sizes = struct.pack(f">{values.ndim}I", *values.shape)
            content = b"\0\0\x08" + bytes([values.ndim]) + sizes + values.tobytes()
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def _environment(tmp_path, monkeypatch):
    """Set small sizes and folders of its own."""
    monkeypatch.setenv("KERAS_ADACLIP_SMOKE", "1")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    write_fashion_mnist(tmp_path / "keras" / "datasets" / "fashion-mnist")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    # The kernel is another process and must import the same package.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOCS.parent), *sys.path]))
    # The notebook chooses matplotlib's backend.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    notebook = read(path)
    folder = tmp_path / "work"
    folder.mkdir()
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    cells = code_cells(notebook)
    num_figures, words = SHOWN[path.stem]
    assert len(figures(cells)) == num_figures
    output = printed(cells)["stdout"]
    assert [each for each in words if each not in output] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_output_is_empty_or_of_one_run_at_full_size(path):
    cells = code_cells(read(path))
    if not any(cell.outputs or cell.execution_count for cell in cells):
        return
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert len(figures(cells)) == SHOWN[path.stem][0]
    output = printed(cells)
    assert "60,000" in output["stdout"]
    # TensorFlow describes the machine there, and Python prints warnings.
    assert "Warning" not in output["stderr"]
    assert path.stat().st_size < 500_000
