"""Where a model comes from: an import path or an artifact's file."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from streamserve.errors import PlanError, StreamserveError
from streamserve.runtimes.base import ModelSpec
from streamserve.runtimes.frameworks import how_to_install, require
from streamserve.runtimes.options import Options
from streamserve.skops_io import skops_io

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_IMPORT_PATH = re.compile(rf"(?P<module>{_DOTTED}):(?P<attribute>{_DOTTED})(?P<call>\(\))?")
_PICKLES = frozenset({".pkl", ".pickle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a source gave, and which of the model's options it used for that."""

    obj: Any
    used_options: frozenset[str] = frozenset()


def resolve(spec: ModelSpec, base_dir: Path) -> Loaded:
    """Load the object that `spec.source` names. Raises `ModelError` where it cannot."""
    suffix = Path(spec.source).suffix.lower()
    if suffix in _READERS:
        file = base_dir / Path(spec.source).expanduser()
        if not file.is_file():
            raise spec.error(f"no file {file}")
        return _READERS[suffix](file, spec)
    path = _IMPORT_PATH.fullmatch(spec.source)
    if path is None:
        raise spec.error(f"source {spec.source!r} {why_no_source(spec.source)}")
    attribute = import_attribute(path["module"], path["attribute"], spec, base_dir)
    return _call_factory(attribute, spec) if path["call"] else Loaded(obj=attribute)


def why_no_source(source: str) -> str:
    """Why the text can name no model, whatever is installed; empty where it can."""
    suffix = Path(source).suffix.lower()
    if suffix in _READERS:
        return ""
    if suffix in _PICKLES:
        return "is a plain pickle, which is not read; save the model as .skops, .onnx, .pt or .joblib"
    if _IMPORT_PATH.fullmatch(source):
        return ""
    return (
        "is neither an import path (package.module:attribute, or package.module:factory() to call it) nor a file "
        f"ending in {', '.join(_READERS)}"
    )


def import_attribute(module_name: str, attribute: str, spec: ModelSpec, base_dir: Path | None = None) -> Any:
    """`module_name:attribute`, imported with the working directory on `sys.path`, as an application's modules are.

    `base_dir`: the config's folder; the error says so where the module stands there instead.
    """
    found: Any = _import_module(module_name, spec, base_dir)
    for i, part in enumerate(parts := attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            owner = ".".join([module_name, *parts[:i]])
            names = [name for name in dir(found) if not name.startswith("_")]
            where = getattr(found, "__file__", None)
            raise spec.error(
                f"{owner} has no attribute {part!r}" + (f" ({where})" if where else "") + f"; it has: {_some(names)}"
            ) from None
        except Exception as broken:
            raise spec.error(f"reading {module_name}:{attribute} failed: {_told(broken)}") from broken
    return found


def _where_to_run(module_name: str, base_dir: Path | None) -> str:
    """What to do where the module stands beside the config, but the command runs elsewhere, or another package of its
    name hides it; else nothing."""
    if base_dir is None:
        return ""
    file = base_dir.joinpath(*module_name.split("."))
    beside = file.with_name(f"{file.name}.py").is_file() or (file / "__init__.py").is_file()
    if not beside:
        return ""
    package = module_name.partition(".")[0]
    found = getattr(sys.modules.get(package), "__file__", None)
    if found is not None and base_dir.resolve() not in Path(found).resolve().parents:
        return f"; another {package} hides the one in {base_dir}: {found}. Give that folder an __init__.py too"
    return f"; it is in {base_dir}: run the command there"


def _import_module(module_name: str, spec: ModelSpec, base_dir: Path | None) -> ModuleType:
    working_dir = os.getcwd()
    if working_dir not in sys.path:
        sys.path.insert(0, working_dir)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except StreamserveError:
        raise
    except ModuleNotFoundError as missing:
        name = missing.name or module_name
        if name == module_name or module_name.startswith(f"{name}."):
            words = f"no module {name!r}; it was looked for in {working_dir} and on sys.path"
            raise spec.error(words + _where_to_run(module_name, base_dir)) from missing
        package = name.partition(".")[0]
        raise spec.error(
            f"module {module_name} needs {name}, which is not installed{how_to_install(package)}"
        ) from missing
    except (Exception, SystemExit) as broken:
        raise spec.error(f"importing {module_name} failed: {_told(broken)}") from broken


def _call_factory(factory: Any, spec: ModelSpec) -> Loaded:
    """Call `factory()` with the model's options that it has parameters for."""
    if not callable(factory):
        raise spec.error(f"{spec.source}: {type(factory).__name__} cannot be called; leave out the parentheses")
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables of C extensions have none
        parameters = inspect.signature(lambda: None).parameters
    taken = {name: value for name, value in spec.options.items() if name in parameters}
    lacking = [
        name
        for name, parameter in parameters.items()
        if name not in taken
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if lacking:
        raise spec.error(f"{spec.source} needs {_some([f'options.{name}' for name in lacking])}")
    try:
        return Loaded(obj=factory(**taken), used_options=frozenset(taken))
    except StreamserveError:
        raise
    except (Exception, SystemExit) as broken:
        raise spec.error(f"{spec.source} failed: {_told(broken)}") from broken


def _read_skops(file: Path, spec: ModelSpec) -> Loaded:
    require("skops", spec)
    skops = skops_io()
    try:
        found = skops.get_untrusted_types(file=file)
    except Exception as broken:
        raise _unreadable(file, broken, spec) from broken
    untrusted = sorted(set(found) - set(spec.trusted_types))
    if untrusted:
        listed = ", ".join(f'"{name}"' for name in untrusted)
        raise spec.error(f"{file} holds types that are not known to be safe; to allow: trusted_types = [{listed}]")
    try:
        return Loaded(obj=skops.load(file, trusted=list(spec.trusted_types)))
    except Exception as broken:
        raise _unreadable(file, broken, spec) from broken


def _read_joblib(file: Path, spec: ModelSpec) -> Loaded:
    if not spec.trust_pickle:
        raise spec.error(
            f"{file} is a pickle, and reading one runs the code inside; save the model with skops instead, "
            "or set trust_pickle = true if you made the file yourself"
        )
    joblib = require("joblib", spec)
    try:
        return Loaded(obj=joblib.load(file))
    except ModuleNotFoundError as missing:
        package = (missing.name or "a module").partition(".")[0]
        raise spec.error(f"{file} needs {package}, which is not installed{how_to_install(package)}") from missing
    except Exception as broken:
        raise _unreadable(file, broken, spec) from broken


def _read_onnx(file: Path, spec: ModelSpec) -> Loaded:
    options = Options(spec)
    threads = options.integer("threads", default=1)
    onnxruntime = require("onnxruntime", spec)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    except Exception as broken:
        raise _unreadable(file, broken, spec) from broken
    return Loaded(obj=session, used_options=options.asked)


def _read_state_dict(file: Path, spec: ModelSpec) -> Loaded:
    options = Options(spec)
    module_path = options.text("module")
    arguments = options.table("module_arguments")
    path = _IMPORT_PATH.fullmatch(module_path or "")
    if path is None or path["call"]:
        given = "is missing; it" if module_path is None else f"= {module_path!r}"
        raise spec.error(
            f"{file} holds weights only: options.module {given} must name their torch module "
            'as "package.module:Class" (its arguments: options.module_arguments)'
        )
    torch = require("torch", spec)
    module_class = import_attribute(path["module"], path["attribute"], spec)
    try:
        module = module_class(**arguments)
        module.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as broken:
        raise _unreadable(file, broken, spec) from broken
    return Loaded(obj=module, used_options=options.asked)


def _read_plan(file: Path, spec: ModelSpec) -> Loaded:
    options = Options(spec)
    store = options.text("store")
    packing, stores = require("streamserve.plan.packing", spec), require("streamserve.plan.store", spec)
    try:
        plan = packing.load(file, stores.Store(store), trust_pickle=spec.trust_pickle)
    except PlanError as refusal:
        raise type(refusal)(f"model {spec.model_id}: {refusal}") from refusal
    return Loaded(obj=plan, used_options=options.asked)


_READERS: dict[str, Callable[[Path, ModelSpec], Loaded]] = {
    ".skops": _read_skops,
    ".onnx": _read_onnx,
    ".pt": _read_state_dict,
    ".pth": _read_state_dict,
    ".joblib": _read_joblib,
    ".plan": _read_plan,
}


def _unreadable(file: Path, broken: Exception, spec: ModelSpec) -> StreamserveError:
    words = " ".join(str(broken).split())  # frameworks like to break their lines
    return spec.error(f"{file} cannot be loaded: {type(broken).__name__}: {words}")


def _told(broken: BaseException) -> str:
    """`Type: words (file:line)`, where the line is the innermost one of the user's code."""
    if isinstance(broken, SyntaxError):
        return f"SyntaxError: {broken.msg} ({broken.filename}:{broken.lineno})"
    not_theirs = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen", __file__)
    frames = [
        frame for frame in traceback.extract_tb(broken.__traceback__) if not frame.filename.startswith(not_theirs)
    ]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(broken).__name__}: {broken}{where}"


def _some(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most]) or "nothing"
    return f"{shown}, ..." if len(names) > most else shown
