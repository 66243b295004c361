"""Imports Keras without the lines that TensorFlow prints while it starts: `import quiet_start`.

TensorFlow writes them past every setting, straight to the file of standard error. Everything else
that is written there meanwhile is passed on.
"""

import os
import re
import sys
import tempfile

_START_UP = re.compile(
    rb"WARNING: All log messages before absl|[IE]0000 .*cud|I0000 .*cpu_feature_guard"
    rb"|To enable the following instructions"
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_stderr = os.dup(2)
with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow

            tensorflow.config.list_physical_devices()
    finally:
        os.dup2(_stderr, 2)
        os.close(_stderr)
        held.seek(0)
        for line in held:
            if not _START_UP.match(line):
                sys.stderr.buffer.write(line)
