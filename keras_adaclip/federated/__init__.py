"""Federated learning over simulated clients, each protected with all of its examples.

partition           whose each example is, for data without clients
client_data         the examples by client: from arrays, from HDF5 files
cohort_batches      each round's draw of clients, laid out for the compiled step
local_training      what one client contributes
step                one round: contribute, clip, noise, apply, account
federated_model     `FederatedModel`, whose `fit` runs the rounds
"""

from keras_adaclip.federated import partition
from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.federated.federate import federate
from keras_adaclip.federated.federated_model import FederatedModel
from keras_adaclip.federated.federated_sequential import FederatedSequential
from keras_adaclip.federated.weighting import ByExamples

__all__ = [
    "ByExamples",
    "ClientData",
    "FederatedModel",
    "FederatedSequential",
    "federate",
    "partition",
]
