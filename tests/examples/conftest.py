"""The scripts import what they share from their own folder, and so do these tests."""

import sys
from pathlib import Path

import keras_adaclip as ka

FOLDER = Path(ka.__file__).parents[1] / "examples"
if FOLDER.exists():
    sys.path[:0] = [str(FOLDER), str(FOLDER / "federated")]
else:  # The examples are not part of this installation.
    collect_ignore_glob = ["*"]
