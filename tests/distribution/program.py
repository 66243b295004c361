"""One process of a training over devices: the number of devices is fixed when a framework starts.

    python -m tests.distribution.program OPTIONS RESULTS.npz

with OPTIONS in JSON: `backend`, `devices` (of this process), `kind` of distribution, `processes`,
`process`, `ports`, and `scenarios`, the names of functions of `scenarios.py`. Their arrays are
written under `SCENARIO/NAME`; of an error, its text.
"""

import contextlib
import json
import os
import sys
import traceback


def main(options, results):
    """Start the framework with its devices, then run the scenarios."""
    os.environ["KERAS_BACKEND"] = options["backend"]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    start = start_jax if options["backend"] == "jax" else start_tensorflow
    scope = start(options)

    import numpy as np

    from tests.distribution import scenarios

    found = {}
    for name in options["scenarios"]:
        try:
            arrays = getattr(scenarios, name)(scope, options)
        except Exception as error:
            traceback.print_exc()
            if options.get("errors_end_it"):
                sys.stderr.flush()
                # Frameworks would wait for the other processes.
                os._exit(3)
            arrays = {"error": np.array(f"{type(error).__name__}: {error}")}
        found |= {f"{name}/{key}": np.asarray(value) for key, value in arrays.items()}
    np.savez(results, **found)


def start_jax(options):
    count = options["devices"]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    if options["processes"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    import keras

    if options["processes"] > 1:
        address = f"localhost:{options['ports'][0]}"
        keras.distribution.initialize(address, options["processes"], options["process"])
    devices = keras.distribution.list_devices()
    assert len(devices) == count * options["processes"]
    distribution = None
    if options["kind"] == "data":
        distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    elif options["kind"] == "model":
        shape = (len(devices) // 2, 2)
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
        layouts = keras.distribution.LayoutMap(mesh)
        layouts[".*hidden/kernel"] = (None, "model")
        layouts[".*hidden/bias"] = ("model",)
        layouts[".*logits/kernel"] = ("model", None)
        distribution = keras.distribution.ModelParallel(
            layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
        )
    keras.distribution.set_distribution(distribution)
    return contextlib.nullcontext


def start_tensorflow(options):
    if options["processes"] > 1:
        workers = [f"localhost:{port}" for port in options["ports"]]
        task = {"type": "worker", "index": options["process"]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    configuration = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [configuration] * options["devices"])
    if options["processes"] > 1:
        return tf.distribute.MultiWorkerMirroredStrategy().scope
    if options["kind"] == "data":
        devices = [f"CPU:{number}" for number in range(options["devices"])]
        return tf.distribute.MirroredStrategy(devices).scope
    return contextlib.nullcontext


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
