"""Code shared by models of examples and models of clients: examination, runs, saved state."""

from keras_adaclip.training.arrays import strings_as_tensors
from keras_adaclip.training.base import TrainingBase
from keras_adaclip.training.issues import Finding, PrivacyIssue, issues_of_clients, refuse
from keras_adaclip.training.model_forms import SubclassedForm, converted
from keras_adaclip.training.preflight import (
    batch_normalization_issues,
    compile_issues,
    layer_issues,
    metric_issues,
    refuse_other_weights,
    refuse_unsound_parts,
    refuse_unsound_training,
    refuse_unsupported,
    refusing_batch_statistics,
)
from keras_adaclip.training.probe import Probe
from keras_adaclip.training.processes import (
    on_all_devices,
    refuse_batch_of_every_replica,
    refuse_clients_of_one_process,
    refuse_data_of_one_process,
    refuse_disagreement,
    refuse_joined_batches,
    refuse_other_settings,
    refuse_uneven_batches,
)
from keras_adaclip.training.step_isolation import StepIsolation
from keras_adaclip.training.step_parts import (
    CONVOLUTIONS,
    assign_state,
    merge_over_chunks,
    refuse_lost_metrics,
    sum_of_replicas,
    sum_over_chunks,
    update_metrics,
)
from keras_adaclip.training.traced_model import known_words
from keras_adaclip.training.training_data import TrainingData

__all__ = [
    "CONVOLUTIONS",
    "Finding",
    "PrivacyIssue",
    "Probe",
    "StepIsolation",
    "SubclassedForm",
    "TrainingBase",
    "TrainingData",
    "assign_state",
    "batch_normalization_issues",
    "compile_issues",
    "converted",
    "issues_of_clients",
    "known_words",
    "layer_issues",
    "merge_over_chunks",
    "metric_issues",
    "on_all_devices",
    "refuse",
    "refuse_batch_of_every_replica",
    "refuse_clients_of_one_process",
    "refuse_data_of_one_process",
    "refuse_disagreement",
    "refuse_joined_batches",
    "refuse_lost_metrics",
    "refuse_other_settings",
    "refuse_other_weights",
    "refuse_uneven_batches",
    "refuse_unsound_parts",
    "refuse_unsound_training",
    "refuse_unsupported",
    "refusing_batch_statistics",
    "strings_as_tensors",
    "sum_of_replicas",
    "sum_over_chunks",
    "update_metrics",
]
