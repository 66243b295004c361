"""A server that ends without a word at some moment.

    python killed_server.py CHECKPOINT SENT "NUMBER begun|added"

`SENT` gets a line for each round: the digest of the weights that nodes were sent.
"""

import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras_adaclip.federated.server_rounds import ServerRounds
from tests.federated.support import clients_of, weights
from tests.federated.test_nodes import COHORT, SIZES, Nodes, compiled


def main(checkpoint, sent, moment):
    number, place = moment.split()
    server = compiled(clipping=0.2, noise_multiplier=1.0, seed=None)
    nodes = Nodes(lambda: compiled(clipping=0.2), clients_of(SIZES))
    rounds = ServerRounds(server, len(SIZES), COHORT, checkpoint=checkpoint)
    if place == "added":
        save, saved = rounds._save, []

        def killed_before_it_is_written():
            saved.append(True)
            if len(saved) == int(number):
                os._exit(9)
            save()

        rounds._save = killed_before_it_is_written
    with rounds.run(100) as left:
        for done in range(1, left + 1):
            drawn = rounds.begin_round()
            with Path(sent).open("a") as file:
                print(hashlib.sha256(weights(server).tobytes()).hexdigest(), file=file)
            if place == "begun" and done == int(number):
                os._exit(9)
            rounds.end_round(nodes.sums(server, drawn, rounds.ledger))


if __name__ == "__main__":
    main(*sys.argv[1:])
