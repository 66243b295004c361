"""The code of `docs/federated.md` runs and prints what the page says."""

import h5py
import numpy as np

from tests.docs import pages


def test_the_code_runs_and_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("fed_emnist_train.h5", "w") as file:
        file["examples/f0000_14/pixels"] = np.ones((2, 28, 28), np.float32)
        file["examples/f0000_14/label"] = np.array([3, 7])
    names = pages.run(pages.DOCS / "federated.md")
    assert names["model"].privacy_unit == "client"
    assert len(names["clients"]) == 200
    assert list(names["writers"]) == ["f0000_14"]
