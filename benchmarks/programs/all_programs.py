"""All programs, by name."""

import applications
import hub_tasks
import image_classifiers
import image_transformers
import more_vision
import segmentation
from catalogue import Program

MODULES = (
    image_classifiers,
    image_transformers,
    segmentation,
    more_vision,
    applications,
    hub_tasks,
)
SUITE: dict[str, Program] = {
    program.name: program for module in MODULES for program in module.PROGRAMS
}
