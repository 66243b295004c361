"""A model's report: from `fit`, through a file, and by the command line."""

import dataclasses
import io
import json
import re
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.__main__ import main
from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyReport,
    RandomSelection,
    Sampling,
    read_ledger,
)
from keras_adaclip.accounting.saved_ledger import read_saved_privacy
from tests.models import helpers

DELTA = 1e-3
LEDGER, ROWS = "ledger_in_files/vars", "ledger_in_files/vars/privacy_ledger"
ROW = LedgerRow.open(Sampling.POISSON, 25, 100, noise_multiplier=1.0).advance(5)


_quick_groups = pytest.fixture(autouse=True)(helpers.quick_groups)


@pytest.fixture(scope="module")
def model():
    model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(2)])
    clipping = ka.clipping.QuantileClipping(groups="per_layer", count_noise_stddev=8.0)
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), clipping=clipping, noise_multiplier=2.0
    )
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((40, 3), "float32"), np.zeros((40, 2), "float32")
    model.fit(x, y, batch_size=20, epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path


def test_model_file_weights_and_command_have_one_report(model, saved, tmp_path, capsys):
    selection = RandomSelection(10, "logarithmic")
    stated = {"group_sizes": (), "data_description": "all ones", "statements": {"a": "b"}}
    expected = model.privacy_report(DELTA, model_file=saved, selection=selection, **stated)
    assert expected.epsilon_pld == model.privacy_spent(DELTA).epsilon
    assert expected.epsilon_rdp == model.privacy_spent(DELTA, "rdp").epsilon
    assert expected.epsilon_with_selection == selection.epsilon(model.privacy_ledger, DELTA)
    assert expected.steps == 4
    assert expected.versions["backend"] == keras.backend.backend()
    assert expected.versions[keras.backend.backend()]
    assert "QuantileClipping: noise multiplier z = 2, of the sum z_D = " in expected.clipping
    assert "private statistic" in expected.clipping
    assert "from the operating system" in expected.seeds
    assert "those that private training left" in expected.weights
    assert PrivacyReport.from_file(saved, DELTA, selection=selection, **stated) == expected
    loaded = keras.models.load_model(saved)
    found = loaded.privacy_report(DELTA, model_file=saved, selection=selection, **stated)
    assert found == expected
    bare = keras.models.load_model(saved, compile=False).privacy_report(DELTA, **stated)
    assert bare.epsilon_pld == expected.epsilon_pld
    assert "without its optimizer" in bare.clipping
    model.save_weights(tmp_path / "model.weights.h5")
    for path in (saved, tmp_path / "model.weights.h5"):
        assert read_ledger(path) == model.privacy_ledger


def test_the_command_prints_or_writes_the_report_of_a_file(model, saved, tmp_path, capsys):
    selection = RandomSelection(10, "logarithmic")
    stated = {"data_description": "all ones", "model_file": saved, "selection": selection}
    expected = model.privacy_report(DELTA, **stated)
    words = ["report", str(saved), "--delta", str(DELTA), "--data-description", "all ones"]
    words += ["--mean-trials", "10", "--distribution", "logarithmic"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("Privacy report\n\nIn short:\n- If it is as likely as not ")
    assert "\n\nepsilon, one run " in out
    assert "\ntrust model                central: " in out
    assert main([*words, "--format", "html"]) == 0
    printed = capsys.readouterr().out
    assert without_date(printed) == without_date(expected.to_html())
    path = tmp_path / "report.html"
    assert main([*words, "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"Written to {path}\n"
    assert without_date(path.read_text(encoding="utf-8")) == without_date(printed)
    for wrong, message in (
        (["--output", "report.pdf"], "must end with"),
        (["--output", "a.md", "--format", "json"], "not allowed with"),
    ):
        with pytest.raises(SystemExit):
            main([*words, *wrong])
        assert message in capsys.readouterr().err


def one_step_model(**options):
    model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=5.0, **options), loss="mse")
    x = np.ones((40, 3), "float32")
    return model, lambda **options: model.fit(x, x, batch_size=20, verbose=0, **options)


def test_the_callback_writes_the_report_when_training_ends(tmp_path):
    model, fit = one_step_model(seed=42)
    path = tmp_path / "new" / "report.html"
    stated = {"data_description": "all ones"}
    fit(callbacks=[ka.callbacks.PrivacyCallback(DELTA, report_path=path, **stated)])
    expected = model.privacy_report(DELTA, **stated).to_html()
    assert without_date(path.read_text(encoding="utf-8")) == without_date(expected)


def without_date(text):
    return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", "", text)


def test_no_seed_is_in_a_report_or_a_file_of_weights(tmp_path):
    """Who knows the seed can subtract the noise."""
    model, fit = one_step_model(seed=8_675_309)
    fit()
    report = model.privacy_report(DELTA, group_sizes=())
    assert "from a seed of the user" in report.seeds
    model.save_weights(tmp_path / "model.weights.h5")
    weights = (tmp_path / "model.weights.h5").read_bytes()
    for content in (report.to_json(), weights.decode("latin-1")):
        assert "8675309" not in content
    read = PrivacyReport.from_file(tmp_path / "model.weights.h5", DELTA, group_sizes=())
    assert read.seeds == report.seeds


def changed(path, change):
    """A copy of a `.weights.h5` file after `change(file)`."""
    copy = shutil.copy(path, path.with_name("changed.weights.h5"))
    with h5py.File(copy, "a") as file:
        change(file)
    return copy


def test_changed_weights_and_lost_facts_of_a_file_are_told(model, tmp_path):
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)

    def weights_of(place, value):
        def change(file):
            file[place][0] = value

        return read_saved_privacy(changed(path, change)).weights

    digests = f"{LEDGER}/privacy_weights_digests"
    report = model.privacy_report(DELTA, ())
    assert read_saved_privacy(path).weights == report.weights
    for place, value, words in (
        ("layers/dense/vars/0", 9.0, "NOT those"),
        (digests, 0, "NOT those"),
        (digests, 255, "not known whether"),
    ):
        assert words in weights_of(place, value)
    for name in ("privacy_facts", "privacy_weights_digests"):
        with pytest.raises(ValueError, match="only a part of one"):
            read_saved_privacy(changed(path, lambda file, name=name: file.pop(f"{LEDGER}/{name}")))


def test_a_public_change_is_declared_and_kept(tmp_path):
    model, fit = one_step_model()
    with pytest.raises(ValueError, match="No weight is known to have changed"):
        model.declare_public_change("nothing yet")
    fit()
    with pytest.raises(ValueError, match="No weight is known to have changed"):
        model.declare_public_change("nothing yet")
    model.layers[0].kernel.assign(np.round(model.get_weights()[0], 1) + 0.5)
    with helpers.warns("declare_public_change"):
        assert model.privacy_spent(DELTA).weights_unchanged is False
    for wrong in (3, " "):
        with pytest.raises(ValueError, match="`reason` must"):
            model.declare_public_change(wrong)
    model.declare_public_change("rounded to one\ndecimal")
    assert model.privacy_spent(DELTA).weights_unchanged is True
    # It covers no later change.
    model.layers[0].kernel.assign(np.zeros((3, 3)))
    assert "NOT those" in model.privacy_report(DELTA, ()).weights
    model.declare_public_change("set to zero")
    fit()  # Changes between two private runs stay declared.
    reasons = "rounded to one decimal; set to zero"
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    loaded.tuning = "a search of two trials"
    restored = [type(loaded).from_config(loaded.get_config()) for _ in range(2)]
    for other, form in zip(restored, ("numpy_array", "backend_tensor"), strict=True):
        other.set_state_tree(loaded.get_state_tree(form))
        assert other.tuning == loaded.tuning
    reports = [each.privacy_report(DELTA, ()) for each in (model, loaded, *restored)]
    reports.append(PrivacyReport.from_file(path, DELTA, group_sizes=()))
    for report in reports:
        assert report.public_changes == reasons
        assert (
            f"; those that private training left; public steps since, as declared: {reasons}"
            in (str(report))
        )
    again = ka.privatize(model.to_keras())
    assert again.privacy_report(DELTA, ()).public_changes == reasons


def test_a_former_value_that_stands_elsewhere_in_a_file_hides_no_change(tmp_path):
    dense = [keras.layers.Dense(3, trainable=False), keras.layers.Dense(3)]
    model = ka.PrivateSequential([keras.Input((3,)), *dense])
    momentum = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(ka.optimizers.DPOptimizer(momentum, noise_multiplier=5.0), "mse")
    x, path = np.ones((40, 3), "float32"), tmp_path / "model.weights.h5"
    model.fit(x, x, batch_size=20, verbose=0)
    model.save_weights(path)
    assert "; those that" in read_saved_privacy(path).weights

    def move(file):
        # The zeros of this bias are those of the hidden variables of the optimizer too.
        file["layers/dense/vars/1"][...] = 1.0

    assert any(np.size(each) == 3 and not np.any(each) for each in model.get_weights())
    assert "NOT those" in read_saved_privacy(changed(path, move)).weights
    first, second = (np.array(keras.ops.convert_to_numpy(layer.kernel)) for layer in dense)
    dense[0].kernel.assign(second)
    dense[1].kernel.assign(first)
    model.save_weights(path)
    assert "NOT those" in read_saved_privacy(path).weights
    assert "NOT those" in model.privacy_report(DELTA, ()).weights


def test_a_strategy_that_does_not_fit_the_last_steps_does_not_keep_a_model_from_saving(
    saved, tmp_path
):
    model = keras.models.load_model(saved)
    clipping = ka.clipping.QuantileClipping(count_noise_stddev=0.1)
    model.compile(ka.optimizers.DPOptimizer("sgd", clipping, noise_multiplier=0.1), loss="mse")
    model.save_weights(tmp_path / "model.weights.h5")
    report = PrivacyReport.from_file(tmp_path / "model.weights.h5", DELTA, group_sizes=())
    assert "QuantileClipping, which cannot describe the last steps" in report.clipping


def test_how_a_model_was_tuned_is_saved_with_it(saved, tmp_path):
    tuned = keras.models.load_model(saved)
    tuned.tuning = "a search of 4 runs is not counted"
    tuned.save(tmp_path / "tuned.keras")
    loaded = keras.models.load_model(tmp_path / "tuned.keras")
    assert loaded.tuning == tuned.tuning
    loaded.load_weights(saved)
    assert loaded.tuning == tuned.tuning
    other = keras.models.load_model(saved)
    other.tuning = "the best of 9"
    for _ in range(2):
        other.load_weights(tmp_path / "tuned.keras")
    assert other.tuning == "the best of 9; a search of 4 runs is not counted"


def with_weights(change):
    """Writes a `.keras` file whose weights are those that `change` makes of an empty HDF5 file."""

    def write(path):
        weights = io.BytesIO()
        with h5py.File(weights, "w") as file:
            change(file)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.weights.h5", weights.getvalue())

    return write


def with_rows(rows, facts=None):
    def change(file):
        file[ROWS] = rows
        if facts is not None:
            file[f"{LEDGER}/privacy_facts"] = np.asarray(facts, "uint8")

    return with_weights(change)


def with_row(**changes):
    """A file whose row has other values."""
    document = json.loads(Ledger((ROW,)).to_json())
    document["rows"][0].update(changes)
    return with_rows(np.frombuffer(json.dumps(document).encode(), np.uint8))


def with_virtual_data(file):
    layout = h5py.VirtualLayout(shape=(1, 11), dtype="int32")
    layout[:] = h5py.VirtualSource("/etc/elsewhere.h5", "rows", shape=(1, 11))
    file.create_virtual_dataset(ROWS, layout)


def with_compressed_zeros(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 20))


def with_shape(*shape, **options):
    return with_weights(lambda file: file.create_dataset(ROWS, *shape, **options))


def test_one_large_value_that_a_small_file_repeats_is_not_read(model, tmp_path, monkeypatch):
    path, read, to_array = tmp_path / "model.weights.h5", [], h5py.Dataset.__array__
    model.save_weights(path)

    def recorded(dataset, *args, **options):
        read.append(dataset.name)
        return to_array(dataset, *args, **options)

    def repeat(file):
        texts = file.create_dataset("texts", (1000,), dtype=[("text", h5py.vlen_dtype("uint8"))])
        texts[...] = np.asarray([(np.zeros(10, "uint8"),)] * 1000, texts.dtype)
        assert texts.id.get_storage_size() == texts.nbytes

    repeating = changed(path, repeat)
    monkeypatch.setattr(h5py.Dataset, "__array__", recorded)
    assert "; those that" in read_saved_privacy(repeating).weights
    assert "/layers/dense/vars/0" in read
    assert "/texts" not in read


TABLE = Ledger((ROW,)).to_array()
CHUNKS = {"maxshape": (None, 11), "chunks": (1 << 20, 11), "compression": "gzip"}
FILES = {
    "missing": (lambda path: None, r"model\.keras"),
    "of another kind": (lambda path: path.write_text("no zip, no HDF5"), r"Not a `\.keras`"),
    "without weights": (lambda path: zipfile.ZipFile(path, "w").close(), "no privacy ledger"),
    "empty": (with_weights(lambda file: None), "no privacy ledger"),
    "link": (with_rows(h5py.ExternalLink("/etc/elsewhere.h5", "rows")), "no privacy ledger"),
    "virtual": (with_weights(with_virtual_data), "no privacy ledger"),
    "large chunk": (with_shape((1, 11), "int64", **CHUNKS), "not in chunks"),
    "compressed": (with_compressed_zeros, "must not be compressed"),
    "huge": (with_shape((10**9, 11), "int32"), "damaged.*Received: 11,000,000,000 values"),
    "text": (with_shape((2, 11), "S3"), "values of type"),
    "batch": (with_row(expected_batch_size=256), "must not exceed"),
    "noise": (with_row(noise_multiplier=-1.0), "not be negative"),
    "facts": (with_rows(TABLE, [0xFF]), "must be the facts of a model"),
    "other facts": (with_rows(TABLE, list(b'{"versions": {}}')), "must be the facts of a model"),
    "row": (with_row(further=1), "damaged"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_sound_ledger_is_an_error_of_one_line(name, tmp_path, capsys):
    write, message = FILES[name]
    write(path := tmp_path / "model.keras")
    with pytest.raises(FileNotFoundError if name == "missing" else ValueError, match=message):
        read_ledger(path)
    with pytest.raises(SystemExit) as error:
        main(["report", str(path), "--delta", "1e-5"])
    assert error.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def line_of(model):
    """The line on privacy below the table of `summary`."""
    printed = []
    model.summary(print_fn=printed.append)
    table, line = printed
    assert "Total params" in table
    return line


def test_summary_has_a_line_on_privacy(model, saved, capsys):
    spent = " Privacy: 4 steps (poisson: 4 steps, batches of 20 of 40, q = 0.5, z = 2)"
    assert line_of(model) == f"{spent}; compiled with {model.optimizer!r}"
    model.summary()
    assert capsys.readouterr().out.endswith(f"{line_of(model)}\n")
    bare = keras.models.load_model(saved, compile=False)
    assert line_of(bare) == f"{spent}; not compiled"
    rows = (dataclasses.replace(ROW, noise_multiplier=noise) for noise in (1.0, 3.0, 4.0, 5.0))
    bare._include(Ledger(tuple(rows)), ())
    assert line_of(bare).startswith(" Privacy: 24 steps (poisson: 5 steps, batches of 25 of 100")
    assert line_of(bare).endswith("; ...); not compiled")
    bare._lose_ledger("its shape differs")
    assert "spent on the loaded weights is not known" in line_of(bare)
    new = ka.FederatedModel(*(keras.Input((3,)),) * 2)
    assert line_of(new) == " Privacy: not trained yet; not compiled"


PLANNED = ka.optimizers.AutoDPOptimizer(3.0, delta=1e-2)


@pytest.mark.parametrize(
    ("optimizer", "callbacks", "delta"),
    [
        (PLANNED, [], 1e-2),
        (helpers.dp_optimizer(), [ka.callbacks.PrivacyCallback(1e-2)], 1e-2),
        (helpers.dp_optimizer(), [ka.callbacks.PrivacyCallback(1e-2, 1e3)], 1e-2),
        (helpers.dp_optimizer(), [], helpers.NUM_EXAMPLES**-1.1),
    ],
    ids=["plan", "callback", "target", "nothing"],
)
def test_without_a_delta_the_one_of_the_run_is_taken(optimizer, callbacks, delta):
    model = helpers.dense_model()
    model.compile(optimizer, helpers.sparse_crossentropy())
    with pytest.raises(ValueError, match="Give `delta`"):
        model.privacy_spent()
    model.fit(helpers.features(), helpers.labels(), verbose=0, callbacks=callbacks)
    assert model.privacy_spent().delta == pytest.approx(delta)
    assert model.privacy_report(group_sizes=()).delta == model.privacy_spent().delta
    assert model.privacy_spent(1e-3).delta == 1e-3


def test_a_report_at_another_delta_than_that_of_the_plan_says_why_epsilon_differs():
    model = helpers.dense_model()
    model.compile(ka.optimizers.AutoDPOptimizer(3.0, delta=1e-2), helpers.sparse_crossentropy())
    model.fit(helpers.features(), helpers.labels(), verbose=0)
    planned = model.privacy_report(group_sizes=())
    other = model.privacy_report(1e-3, group_sizes=())
    assert planned.epsilon <= 3.0 < other.epsilon
    assert "target" not in dict(planned.rows())["epsilon"]
    line = dict(other.rows())["epsilon"]
    assert re.search(r"at delta = 0.001 \(PLD\); (2\.9\d*|3) at delta = 0.01, for which", line), (
        line
    )
