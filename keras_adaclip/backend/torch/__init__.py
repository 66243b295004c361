"""The functions of `contract.py` that PyTorch overrides."""

from keras_adaclip.backend.torch.calls import *  # noqa: F403
from keras_adaclip.backend.torch.gradients import *  # noqa: F403
from keras_adaclip.backend.torch.recording import *  # noqa: F403
from keras_adaclip.backend.torch.steps import *  # noqa: F403
