"""All programs, by name."""

import image_classifiers
from catalogue import Program

MODULES = (image_classifiers,)
SUITE: dict[str, Program] = {
    program.name: program for module in MODULES for program in module.PROGRAMS
}
