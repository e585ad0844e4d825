"""Sources, entry points and the words that a user gets when something is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from streamserve.errors import ModelError
from streamserve.runtimes import ModelSpec, Outputs, load, runtime_names

BATCH = np.arange(6, dtype=float).reshape(3, 2)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application's folder: the working directory, and a module name that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("app_"):
            del sys.modules[name]


def write(folder: Path, name: str, code: str) -> None:
    (folder / name).write_text(textwrap.dedent(code))


def spec(source: str, **settings: object) -> ModelSpec:
    return ModelSpec(name="m", version="1", source=source, **settings)


def fitted() -> LogisticRegression:
    return LogisticRegression().fit([[0.0, 0], [0, 1], [1, 0], [1, 1]], [0, 0, 1, 1])


# -- import paths


def test_a_callable_is_imported_from_the_working_directory(app: Path) -> None:
    write(app, "app_sum.py", "def predict(batch):\n    return batch.sum(axis=1)\n")
    assert load(spec("app_sum:predict")).predict(BATCH).labels.tolist() == [1, 5, 9]


def test_a_model_object_goes_to_its_runtime(app: Path) -> None:
    write(
        app,
        "app_fit.py",
        """
        from sklearn.linear_model import LogisticRegression
        model = LogisticRegression().fit([[0.0], [1.0]], ["no", "yes"])
        """,
    )
    outputs = load(spec("app_fit:model")).predict(np.array([[-9.0], [9.0]]))
    assert outputs.labels.tolist() == ["no", "yes"]
    assert outputs.classes.tolist() == ["no", "yes"]


def test_a_factory_is_called_with_the_options_it_has_parameters_for(app: Path) -> None:
    write(
        app,
        "app_factory.py",
        """
        def model(factor, offset=0):
            return lambda batch: batch[:, 0] * factor + offset
        """,
    )
    runtime = load(spec("app_factory:model()", options={"factor": 10}))
    assert runtime.predict(BATCH).labels.tolist() == [0, 20, 40]
    with pytest.raises(ModelError, match=r"app_factory:model\(\) needs options.factor"):
        load(spec("app_factory:model()"))
    with pytest.raises(ModelError, match="unknown option faktor; known here: none"):
        load(spec("app_factory:model()", options={"factor": 1, "faktor": 2}))


def test_a_method_of_an_attribute_can_be_named(app: Path) -> None:
    write(
        app,
        "app_method.py",
        "class Model:\n    def predict(self, batch):\n        return batch[:, 1]\nmodel = Model()\n",
    )
    assert load(spec("app_method:model.predict")).predict(BATCH).labels.tolist() == [1, 3, 5]
    assert load(spec("app_method:model")).predict(BATCH).labels.tolist() == [1, 3, 5]
    with pytest.raises(
        ModelError, match=r'the class Model; to make an object of it write source = "app_method:Model\(\)"'
    ):
        load(spec("app_method:Model"))


def test_a_module_beside_the_config_is_found_by_a_command_that_runs_there(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = app / "project", app / "elsewhere"
    (project / "app_pack").mkdir(parents=True)
    elsewhere.mkdir()
    write(project, "app_pack/model.py", "model = max")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ModelError, match=rf"; it is in {re.escape(str(project))}: run the command there$"):
        load(spec("app_pack.model:model"), base_dir=project)
    with pytest.raises(ModelError, match=r"on sys\.path$"):
        load(spec("app_pack.other:model"), base_dir=project)


def test_a_package_that_hides_the_one_beside_the_config_is_named(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without `__init__.py` comes after every package of its name, wherever that is."""
    project, installed = app / "mine", app / "installed"
    for folder in (project, installed):
        (folder / "app_hidden").mkdir(parents=True)
    write(project, "app_hidden/model.py", "model = max")
    write(installed, "app_hidden/__init__.py", "")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.chdir(project)
    with pytest.raises(ModelError, match=r"another app_hidden hides the one in .*/mine: .*/installed/app_hidden/"):
        load(spec("app_hidden.model:model"), base_dir=project)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("app_none:model", "model m@1: no module 'app_none'; it was looked for in "),
        ("app_bad:model", r"app_bad has no attribute 'model' .*app_bad.py.; it has: .*prediktor"),
        ("app_bad:prediktor.x.y", r"app_bad.prediktor has no attribute 'x'"),
        ("app_raises:model", r"importing app_raises failed: ZeroDivisionError: .*app_raises.py:2\)"),
        ("app_syntax:model", r"importing app_syntax failed: SyntaxError: .*app_syntax.py:1\)"),
        ("app_exits:model", "importing app_exits failed: SystemExit: "),
        ("app_needs:model", "module app_needs needs no_such_package, which is not installed$"),
        ("app_bad:number()", "int cannot be called; leave out the parentheses"),
        ("app_bad:broken()", r"app_bad:broken\(\) failed: KeyError: 'x' \(.*app_bad.py:5\)"),
        ("app_bad:no_batch", r'takes \(\), .* to call it as a factory write source = "app_bad:no_batch\(\)"'),
        (
            "app_bad:number",
            "app_bad:number, an object of type builtins.int; a model is a function .*; installed runtimes: ",
        ),
        ("just words", "source 'just words' is neither an import path .* nor a file ending in .skops"),
        ("model.pkl", "is a plain pickle, which is not read; save the model as"),
    ],
)
def test_a_wrong_source_is_explained(app: Path, source: str, words: str) -> None:
    write(
        app,
        "app_bad.py",
        """
        def prediktor(batch): ...
        number = 3

        def broken():
            return {}["x"]

        def no_batch(): ...
        """.lstrip("\n"),
    )
    write(app, "app_raises.py", "x = 1\ny = 1 / 0\n")
    write(app, "app_syntax.py", "def:\n")
    write(app, "app_exits.py", "raise SystemExit('bye')\n")
    write(app, "app_needs.py", "import no_such_package\n")
    with pytest.raises(ModelError, match=words):
        load(spec(source))


def test_a_missing_framework_is_named_with_its_extra(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (app / "model.onnx").write_bytes(b"")
    with pytest.raises(
        ModelError, match=r'onnxruntime is not installed; install it with: pip install "streamserve\[onnx\]"'
    ):
        load(spec("model.onnx"))
    write(app, "app_framework.py", "import onnxruntime\n")
    with pytest.raises(ModelError, match=r"needs onnxruntime, which is not installed; .*streamserve\[onnx\]"):
        load(spec("app_framework:model"))


def test_no_framework_is_imported_with_the_runtimes() -> None:
    code = """
import sys, streamserve.runtimes
print([name for name in ("sklearn", "torch", "onnxruntime", "scipy") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# -- files


def test_skops_is_read_relative_to_the_configs_folder(tmp_path: Path) -> None:
    import skops.io

    skops.io.dump(fitted(), tmp_path / "model.skops")
    outputs = load(spec("model.skops"), base_dir=tmp_path).predict(BATCH)
    assert outputs.labels.tolist() == fitted().predict(BATCH).tolist()
    with pytest.raises(ModelError, match=r"no file .*other.skops"):
        load(spec("other.skops"), base_dir=tmp_path)


def test_skops_holds_only_trusted_types(tmp_path: Path) -> None:
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    skops.io.dump(DecisionTreeClassifier().fit(BATCH, [0, 1, 1]), tmp_path / "tree.skops")
    with pytest.raises(ModelError, match=r'to allow: trusted_types = \["sklearn.tree._tree.Tree"\]'):
        load(spec("tree.skops"), base_dir=tmp_path)
    trusting = spec("tree.skops", trusted_types=("sklearn.tree._tree.Tree",))
    assert load(trusting, base_dir=tmp_path).predict(BATCH).labels.tolist() == [0, 1, 1]


def test_joblib_is_read_only_on_trust(tmp_path: Path) -> None:
    import joblib

    joblib.dump(fitted(), tmp_path / "model.joblib")
    with pytest.raises(ModelError, match=r"reading one runs the code inside; .* trust_pickle = true"):
        load(spec("model.joblib"), base_dir=tmp_path)
    outputs = load(spec("model.joblib", trust_pickle=True), base_dir=tmp_path).predict(BATCH)
    assert outputs.labels.tolist() == fitted().predict(BATCH).tolist()


@pytest.mark.parametrize("name", ["broken.skops", "broken.joblib", "broken.onnx"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no model")
    with pytest.raises(ModelError, match=f"{name} cannot be loaded: "):
        load(spec(name, trust_pickle=True), base_dir=tmp_path)


def test_a_state_dict_needs_its_module(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(ModelError, match=r"options.module is missing; it must name their torch module"):
        load(spec("weights.pt"), base_dir=tmp_path)


# -- entry points

LIGHTGBM_RUNTIME = """
import lightgbm, numpy as np
from streamserve.runtimes import Outputs

class LightGbmRuntime:
    def __init__(self, obj, spec):
        self._booster = obj

    @classmethod
    def accepts(cls, obj):
        return isinstance(obj, lightgbm.Booster)

    def predict(self, batch):
        scores = self._booster.predict(batch, num_threads=1)
        if scores.ndim == 1:
            return Outputs(labels=scores)
        return Outputs(labels=scores.argmax(axis=1), probabilities=scores)

    def close(self):
        self._booster.free_dataset()
"""


@pytest.fixture
def lightgbm_package(app: Path) -> Path:
    """A package of somebody else's, installed into a folder on `sys.path`."""
    write(app, "app_lightgbm.py", LIGHTGBM_RUNTIME)
    info = app / "app_lightgbm-1.0.dist-info"
    info.mkdir()
    write(info, "METADATA", "Metadata-Version: 2.1\nName: app-lightgbm\nVersion: 1.0\n")
    write(info, "entry_points.txt", "[streamserve.runtimes]\nlightgbm = app_lightgbm:LightGbmRuntime\n")
    sys.path.insert(0, str(app))
    return app


def test_another_package_adds_a_runtime_in_25_lines(lightgbm_package: Path) -> None:
    assert len(LIGHTGBM_RUNTIME.strip().splitlines()) <= 25
    write(
        lightgbm_package,
        "app_booster.py",
        """
        import lightgbm, numpy as np
        x = np.arange(300.0).reshape(-1, 1)
        params = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
        model = lightgbm.train(params, lightgbm.Dataset(x, np.arange(300) // 100), 20)
        """,
    )
    assert "lightgbm" in runtime_names()
    outputs = load(spec("app_booster:model")).predict(np.array([[5.0], [150.0], [290.0]]))
    assert outputs.labels.tolist() == [0, 1, 2]
    assert outputs.probabilities.shape == (3, 3)


def test_a_runtime_can_be_named(app: Path) -> None:
    write(app, "app_named.py", "def predict(batch):\n    return batch[:, 0]\n")
    assert load(spec("app_named:predict", runtime="callable")).predict(BATCH).labels.tolist() == [0, 2, 4]
    with pytest.raises(ModelError, match="runtime 'sklearn' does not take app_named:predict, an object of type"):
        load(spec("app_named:predict", runtime="sklearn"))
    with pytest.raises(ModelError, match=r"runtime 'skl' is not installed; installed runtimes: .*callable"):
        load(spec("app_named:predict", runtime="skl"))


def test_a_broken_plugin_stops_only_the_models_that_name_it(
    app: Path, caplog: pytest.LogCaptureFixture, lightgbm_package: Path
) -> None:
    write(app, "app_lightgbm.py", "import no_such_package\n")
    write(app, "app_fine.py", "def predict(batch):\n    return batch[:, 0]\n")
    assert isinstance(load(spec("app_fine:predict")).predict(BATCH), Outputs)
    assert "runtime 'lightgbm' (app_lightgbm:LightGbmRuntime) cannot be imported" in caplog.text
    with pytest.raises(
        ModelError, match=r"runtime 'lightgbm' .* cannot be imported: No module named 'no_such_package'"
    ):
        load(spec("app_fine:predict", runtime="lightgbm"))


def test_plugins_are_asked_first_and_callable_last(lightgbm_package: Path) -> None:
    assert runtime_names() == ("lightgbm", "onnx", "sklearn", "torch", "plan", "callable")
