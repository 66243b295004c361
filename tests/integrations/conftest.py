"""Queries are tested on TensorFlow, where TensorFlow Privacy is installed.

`make test-tensorflow-privacy` has an environment for it.
"""

import importlib.util
import sys

import keras

# Its Keras parts need an older Keras; the queries do not.
sys.skip_tf_privacy_import = True
if keras.backend.backend() != "tensorflow" or not importlib.util.find_spec("tensorflow_privacy"):
    collect_ignore_glob = ["test_query_*.py", "test_tensorflow_privacy.py"]
