"""Federated learning over simulated clients, each protected with all of its examples.

federated_model   the models, whose `fit` runs rounds over clients
fit               `compile`, `fit` and `evaluate` of these models
preparation       checks before training, and the number of clients that train side by side
client_scores     scores of single clients
settings          the client arguments of `compile`
clients           the examples by client
client_sources    what they are read from: ids, frames, HDF5 files
partition         the division of a data set among clients
cohorts           the draw of clients in each round, of one process or of several
round_batch       these clients as arrays: where and when each of them trains
round             one round: contribute, clip, noise, apply, account
local_training    the contribution of one client
node_training     ... clipped and added up where the clients are, on nodes
server_rounds     the rest of such a round: sample, add up, noise, apply, account
"""

from keras_adaclip.federated import partition
from keras_adaclip.federated.client_scores import ClientScores
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.federated_model import FederatedModel, FederatedSequential, federate
from keras_adaclip.federated.node_training import NodeTraining
from keras_adaclip.federated.server_rounds import Drawn, NodeSum, ServerRounds
from keras_adaclip.federated.settings import ByExamples

__all__ = [
    "ByExamples",
    "ClientData",
    "ClientScores",
    "FederatedModel",
    "FederatedSequential",
    "federate",
    "partition",
]
