"""The data sets of the examples.

Each loader takes the files that are in Keras's cache (`~/.keras/datasets`) and otherwise downloads
them there, once. If a server does not answer, the error names the file and the place to put it.
Only `load_fashion_mnist` takes other data instead, and says so in `source`.
"""

from .adult import ADULT_CATEGORIES, ADULT_NUMBERS, load_adult
from .images import load_cifar10, load_fashion_mnist, load_imagenette, load_mnist
from .imdb import load_imdb
from .labelled_data import LabelledData
from .made_up import make_up_images, make_up_table, make_up_texts

__all__ = [
    "ADULT_CATEGORIES",
    "ADULT_NUMBERS",
    "LabelledData",
    "load_adult",
    "load_cifar10",
    "load_fashion_mnist",
    "load_imagenette",
    "load_imdb",
    "load_mnist",
    "make_up_images",
    "make_up_table",
    "make_up_texts",
]
