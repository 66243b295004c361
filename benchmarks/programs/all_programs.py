"""All programs, by name."""

import applications
import generative
import hub_tasks
import image_classifiers
import image_transformers
import language
import more_vision
import segmentation
import series
import tables
from catalogue import Program

MODULES = (
    image_classifiers,
    image_transformers,
    segmentation,
    more_vision,
    language,
    tables,
    series,
    generative,
    applications,
    hub_tasks,
)
SUITE: dict[str, Program] = {
    program.name: program for module in MODULES for program in module.PROGRAMS
}
