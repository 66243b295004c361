"""The code on `docs/federated.md` that needs TensorFlow Privacy."""

import keras

import keras_adaclip as ka
from tests.docs import pages
from tests.integrations.support import population, stack


def test_the_page_compiles_a_model_whose_rounds_a_query_aggregates():
    page = (pages.DOCS / "federated.md").read_text(encoding="utf-8")
    (block,) = (block for block in pages.blocks(page) if "TensorFlow Privacy" in block.options)
    names = {"keras": keras, "ka": ka}
    names["model"] = model = ka.federated.FederatedSequential([*stack(), keras.layers.Softmax()])
    exec(compile(block.text, "docs/federated.md", "exec"), names)
    model.fit(population(), cohort_size=6, epochs=1, verbose=0)
    assert 0 < model.privacy_spent(delta=1e-3).epsilon < float("inf")
