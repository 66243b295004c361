"""Tasks of KerasHub train privately on what they are given, and come back with the weights."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_adaclip as ka

WORDS = ["a", "bad", "film", "good", "great", "plot", "poor", "the", "was"]
TEXTS = [" ".join(np.random.default_rng(seed).choice(WORDS, 5)) for seed in range(24)]
LABELS = np.arange(24) % 2
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8, "dropout": 0.0}
hub = keras_hub.models


def classifier():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = hub.BertTokenizer(vocabulary=words)
    backbone = hub.BertBackbone(vocabulary_size=len(words), max_sequence_length=8, **SIZES)
    preprocessor = hub.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    return hub.BertTextClassifier(backbone, 2, preprocessor=preprocessor)


def language_model():
    names = ["<|endoftext|>", *sorted(set("".join(WORDS))), "Ġ", "ba"]
    numbers = {name: number for number, name in enumerate(names)}
    tokenizer = hub.GPT2Tokenizer(vocabulary=numbers, merges=["b a"])
    backbone = hub.GPT2Backbone(vocabulary_size=len(names), max_sequence_length=12, **SIZES)
    preprocessor = hub.GPT2CausalLMPreprocessor(tokenizer, sequence_length=6)
    return hub.GPT2CausalLM(backbone, preprocessor=preprocessor)


def images():
    backbone = hub.ResNetBackbone(
        [64], [3], [64], [1], [1], "basic_block", use_pre_activation=True, image_shape=(8, 8, 3)
    )
    converter = keras_hub.layers.ResNetImageConverter(image_size=(8, 8), scale=1 / 255)
    preprocessor = hub.ResNetImageClassifierPreprocessor(converter)
    return hub.ResNetImageClassifier(backbone, 2, preprocessor=preprocessor)


def private(task, noise_multiplier=1.0, clipping=0.5, **options):
    model = ka.privatize(task, **options)
    inner = keras.optimizers.SGD(0.1)
    model.compile(
        ka.optimizers.DPOptimizer(inner, clipping=clipping, noise_multiplier=noise_multiplier)
    )
    return model


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_classifier_trains_on_texts_and_its_task_has_the_weights(tmp_path):
    task = classifier()
    model = private(task)
    before = task.predict(TEXTS[:3], verbose=0)
    history = model.fit(
        TEXTS, LABELS, batch_size=8, verbose=0, validation_data=(TEXTS[:6], LABELS[:6])
    ).history
    assert {"sparse_categorical_accuracy", "val_sparse_categorical_accuracy"} < set(history)
    predicted = model.predict(np.array(TEXTS[:3]), verbose=0)
    assert np.abs(predicted - before).max() > 1e-4
    same(predicted, model.task.predict(TEXTS[:3], verbose=0))
    assert model.task is task
    assert model.privacy_ledger.steps == 3
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    same(loaded.predict(TEXTS[:3], verbose=0), predicted)
    loaded.fit(TEXTS, LABELS, batch_size=8, verbose=0)
    assert loaded.privacy_ledger.steps == 6
    plain = model.to_keras(tmp_path / "plain.keras", delta=1e-5)
    assert type(plain) is hub.BertTextClassifier
    same(plain.predict(TEXTS[:3], verbose=0), predicted)
    assert ka.privatize(plain).privacy_ledger.steps == 3
    task.save_to_preset(tmp_path / "preset")
    again = hub.TextClassifier.from_preset(str(tmp_path / "preset"))
    same(again.predict(TEXTS[:3], verbose=0), predicted)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_language_model_learns_narrow_matrices_and_generates(when, tmp_path):
    task = language_model()
    if when == "before":
        task.backbone.enable_lora(2)
    model = ka.privatize(task)
    if when == "after":
        model.task.backbone.enable_lora(2)
    model.compile(ka.optimizers.DPOptimizer("sgd", clipping=0.5, noise_multiplier=1.0))
    frozen = [np.array(weight) for weight in task.backbone.token_embedding.get_weights()]
    model.fit(TEXTS, batch_size=8, verbose=0)
    names = {weight.path.rpartition("/")[2] for weight in model.trainable_weights}
    assert {"lora_kernel_a", "lora_kernel_b"} <= names
    for one, other in zip(frozen, task.backbone.token_embedding.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.task.generate("the", max_length=6).startswith("the")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.privacy_ledger.steps == 3
    same(loaded.evaluate(TEXTS, verbose=0), model.evaluate(TEXTS, verbose=0))


@pytest.mark.parametrize("has_lora", [False, True])
def test_without_noise_and_clipping_a_step_is_that_of_the_task(has_lora):
    task, plain = language_model(), language_model()
    if has_lora:
        task.backbone.enable_lora(2)
        plain.backbone.enable_lora(2)
    plain.set_weights(task.get_weights())
    model = private(task, noise_multiplier=0.0, clipping=1e9)
    plain.compile(keras.optimizers.SGD(0.1))
    # All rows have the same number of tokens, so that the mean over tokens is that over rows.
    model.fit(TEXTS, batch_size=24, verbose=0, sampling="shuffle")
    plain.fit(TEXTS, batch_size=24, verbose=0, shuffle=False)
    for one, other in zip(task.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_backbone_is_frozen_and_its_narrow_matrices_train():
    task = language_model()
    task.backbone.quantize("int8")
    task.backbone.enable_lora(2)
    model = private(task)
    model.fit(TEXTS, batch_size=8, verbose=0)
    assert any("lora" in weight.path for weight in model.trainable_weights)


def test_group_normalization_takes_the_place_of_batch_normalization(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (24, 8, 8, 3)).astype("float32")
    model = private(images(), replace_batch_normalization=True)
    model.fit(x, LABELS, batch_size=8, verbose=0)
    predicted = model.predict(x[:3], verbose=0)
    with pytest.raises(ValueError, match="other layers than this model"):
        _ = model.task
    model.save(tmp_path / "model.keras")
    same(keras.models.load_model(tmp_path / "model.keras").predict(x[:3], verbose=0), predicted)
    plain = model.to_keras()
    assert type(plain).__module__.startswith("keras.")
    same(plain.predict(model.preprocessor(x[:3]), verbose=0), predicted)


def test_where_there_is_nothing_to_replace_the_task_stays():
    backbone = hub.GemmaBackbone(8, 1, 2, 1, 8, 16, 4)
    task = hub.GemmaCausalLM(backbone, preprocessor=None)
    assert ka.privatize(task, replace_batch_normalization=True).task is task


def test_what_a_class_of_the_users_replaces_is_refused_by_name():
    class Own(hub.BertTextClassifier):
        def compute_loss(self, *args, **kwargs):
            return 0.0

    with pytest.raises(TypeError, match="'compute_loss'"):
        ka.privatize(Own(classifier().backbone, 2))


def test_a_preprocessor_of_the_users_is_refused_before_a_step():
    task = classifier()
    task.preprocessor = keras.layers.Lambda(lambda x: x)
    model = private(task)
    with pytest.raises(ValueError, match="must be one of KerasHub"):
        model.fit(TEXTS, LABELS, batch_size=8)
    assert model.privacy_ledger.steps == 0


def test_the_preprocessor_can_be_left_out():
    task = classifier()
    rows = keras.tree.map_structure(
        lambda value: np.array(keras.ops.convert_to_numpy(value)), task.preprocessor(TEXTS)
    )
    task.preprocessor = None
    model = private(task)
    model.fit(rows, LABELS, 8, 1, 0)
    assert model.predict(rows, verbose=0).shape == (24, 2)


def test_loss_and_its_weights_are_those_of_the_task():
    def own_loss(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred), axis=-1)

    task = classifier()
    task.compile("sgd", loss=own_loss, loss_weights=[0.5], metrics=[])
    model = private(task)
    found = model.evaluate(TEXTS, LABELS, verbose=0)
    same(found, task.evaluate(TEXTS, LABELS, verbose=0))
    same(found, 0.5 * np.mean(np.square(model.predict(TEXTS, verbose=0))))


class OwnTokenizer(hub.BertTokenizer):
    pass


class OwnClassifier(hub.BertTextClassifier):
    def preprocess_samples(self, x, y=None, sample_weight=None):
        return super().preprocess_samples(x[::-1], y, sample_weight)


def test_parts_of_the_users_in_the_preprocessing_are_refused_before_a_step():
    own, replaced, tokenized = classifier(), classifier(), classifier()
    own = OwnClassifier(own.backbone, 2, preprocessor=own.preprocessor)
    replaced.preprocess_samples = lambda x, y=None, sample_weight=None: (x, y, sample_weight)
    words = tokenized.preprocessor.tokenizer.get_vocabulary()
    tokenized.preprocessor.tokenizer = OwnTokenizer(vocabulary=words)
    for task in (own, replaced, tokenized):
        model = private(task)
        with pytest.raises(ValueError, match="must be one of KerasHub, with its parts"):
            model.fit(TEXTS, LABELS, batch_size=8)
        assert model.privacy_ledger.steps == 0


def test_weights_that_the_preprocessor_would_drop_are_refused():
    model = private(language_model())
    with pytest.raises(ValueError, match="drops yours"):
        model.fit(TEXTS, sample_weight=np.ones(24), batch_size=8)
    assert model.privacy_ledger.steps == 0
