"""Searches with one chief and two workers each, in keras-tuner's distributed mode.

Run as a script with a folder, it forks the processes of every search once all is imported, waits
for them, and leaves what each has found in `<folder>/<search>/<role>.json`.
"""

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

import keras_tuner

from keras_adaclip.tuners import PrivateSearch
from tests.tuners.hypermodels import BATCH_SIZE, Regression, data

NUM_TRIALS = 4
ROLES = ("chief", "worker0", "worker1")
_DEADLINE = 60.0


class SharedRegression(Regression):
    """Regression whose first run on each worker waits for the other worker's first run.

    It is ready for keras-tuner to load weights before training.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def build(self, hp):
        model = super().build(hp)
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(self, hp, model, *arguments, **others):
        self.wait(hp)
        return model.fit(*arguments, batch_size=BATCH_SIZE, epochs=self.epochs, **others)

    def wait(self, hp):
        with (self.folder / f"{os.environ['KERASTUNER_TUNER_ID']}.ran").open("a") as file:
            file.write(f"{hp.get('learning_rate')}\n")
        end = time.monotonic() + _DEADLINE
        while len(list(self.folder.glob("worker*.ran"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)


def random_search(folder):
    return keras_tuner.RandomSearch(
        SharedRegression(folder), "val_loss", NUM_TRIALS, directory=folder, project_name="p"
    )


def private_search(folder):
    return PrivateSearch(
        SharedRegression(folder),
        "val_loss",
        num_trials=NUM_TRIALS,
        directory=folder,
        project_name="p",
    )


def overspending_search(folder):
    search = private_search(folder)
    search.hypermodel.epochs += 1
    return search


SEARCHES = {"random_search": random_search, "private_search": private_search}
REFUSED = {"overspending_search": overspending_search}


def run(name, role, folder, port):
    """One process of a search."""
    os.environ |= {
        "KERASTUNER_TUNER_ID": role,
        "KERASTUNER_ORACLE_IP": "127.0.0.1",
        "KERASTUNER_ORACLE_PORT": str(port),
    }
    if role == "chief":
        # keras-tuner's chief looks every 20 seconds whether all workers are gone.
        real_sleep = time.sleep
        time.sleep = lambda seconds: real_sleep(min(seconds, 0.1))
    search = (SEARCHES | REFUSED)[name](folder)
    found = {}
    try:
        search.search(*data(), validation_data=data(1), verbose=0)
    except RuntimeError as error:
        if name not in REFUSED:
            raise
        found = {"refused": str(error)}
    if name in SEARCHES and role == "chief":
        (model,) = search.get_best_models()
        (hp,) = search.get_best_hyperparameters()
        found = {"steps": model.privacy_ledger.steps, "learning_rate": hp.get("learning_rate")}
    (folder / f"{role}.json").write_text(json.dumps(found))


def forked(name, role, folder, port):
    """The number of a process that runs one part of a search and ends."""
    if (child := os.fork()) != 0:
        return child
    try:
        run(name, role, folder, port)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port):
    """Waits until a chief listens: a worker that finds none asks again ever more rarely."""
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def main(folder):
    """All processes of all searches."""
    searches = [(name, Path(folder) / name, free_port()) for name in SEARCHES | REFUSED]
    children = []
    for name, below, port in searches:
        below.mkdir(parents=True)
        children.append(forked(name, "chief", below, port))
    for name, below, port in searches:
        wait_for(port)
        children += [forked(name, role, below, port) for role in ROLES if role != "chief"]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
