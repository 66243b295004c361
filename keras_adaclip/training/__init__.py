"""Code shared by models of examples and models of clients: examination, runs, saved state.

`models` also imports the modules `made_up`, `preflight`, `processes` and `training_data`,
`federated` the last.
"""

from keras_adaclip.training.base import TrainingBase, flattened
from keras_adaclip.training.issues import Finding, PrivacyIssue, issues_of_clients, refuse
from keras_adaclip.training.made_up import SampleRows
from keras_adaclip.training.model_forms import SubclassedForm, converted
from keras_adaclip.training.preflight import (
    compile_issues,
    metric_issues,
    refuse_other_weights,
    refuse_unsupported,
)
from keras_adaclip.training.probe import Probe
from keras_adaclip.training.processes import on_all_devices, refuse_other_settings
from keras_adaclip.training.step_isolation import StepIsolation
from keras_adaclip.training.step_parts import (
    CONVOLUTIONS,
    assign_state,
    keeping_metrics_only,
    merge_over_chunks,
    observe_norms,
    refuse_lost_metrics,
    sum_of_replicas,
    sum_over_chunks,
    update_metrics,
)
from keras_adaclip.training.training_data import TrainingData, for_keras
