"""Code shared by models of examples and models of clients: examination, runs, saved state.

`models` also imports the modules `made_up`, `preflight`, `processes` and `training_data`.
"""

from keras_adaclip.training.base import TrainingBase as TrainingBase
from keras_adaclip.training.issues import Finding as Finding
from keras_adaclip.training.issues import PrivacyIssue as PrivacyIssue
from keras_adaclip.training.issues import issues_of_clients as issues_of_clients
from keras_adaclip.training.issues import refuse as refuse
from keras_adaclip.training.model_forms import SubclassedForm as SubclassedForm
from keras_adaclip.training.model_forms import converted as converted
from keras_adaclip.training.preflight import compile_issues as compile_issues
from keras_adaclip.training.preflight import metric_issues as metric_issues
from keras_adaclip.training.preflight import refuse_other_weights as refuse_other_weights
from keras_adaclip.training.preflight import refuse_unsupported as refuse_unsupported
from keras_adaclip.training.probe import Probe as Probe
from keras_adaclip.training.processes import on_all_devices as on_all_devices
from keras_adaclip.training.processes import (
    refuse_clients_of_one_process as refuse_clients_of_one_process,
)
from keras_adaclip.training.step_isolation import StepIsolation as StepIsolation
from keras_adaclip.training.step_parts import CONVOLUTIONS as CONVOLUTIONS
from keras_adaclip.training.step_parts import assign_state as assign_state
from keras_adaclip.training.step_parts import merge_over_chunks as merge_over_chunks
from keras_adaclip.training.step_parts import observe_norms as observe_norms
from keras_adaclip.training.step_parts import refuse_lost_metrics as refuse_lost_metrics
from keras_adaclip.training.step_parts import sum_of_replicas as sum_of_replicas
from keras_adaclip.training.step_parts import sum_over_chunks as sum_over_chunks
from keras_adaclip.training.step_parts import update_metrics as update_metrics
from keras_adaclip.training.training_data import TrainingData as TrainingData
from keras_adaclip.training.training_data import strings_as_tensors as strings_as_tensors
