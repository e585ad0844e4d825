"""Train once, keep in the cache: what the example models share."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import sklearn
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from streamserve.datasets import MNIST_SHA256, cache_folder, split
from streamserve.skops_io import skops_io

logger = logging.getLogger(__name__)


def trained(name: str, estimator: Any, trusted: tuple[str, ...] = ()) -> Any:
    """The estimator fitted on MNIST's training images: read from the cache, or trained now and kept there.

    Rows are `[784]` float64 pixels of 0-255, labels int64 digits. `trusted`: what skops would not read
    from a stranger's file. Raises `DatasetError` where MNIST cannot be had.
    """
    file = model_file(name, str(sorted(estimator.get_params().items(), key=str)), sklearn.__version__, "skops")
    if not file.is_file():
        logger.info("training %s", name)
        data = split()
        with warnings.catch_warnings(), threadpool_limits(1):  # more threads are slower where others work, too
            warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early on purpose
            estimator.fit(data.train_images.astype(float), data.train_labels)
        _write(estimator, file)
    return skops_io().load(file, trusted=list(trusted))


def _write(estimator: Any, file: Path) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    skops_io().dump(estimator, part)
    part.replace(file)


def model_file(name: str, settings: str, version: str, suffix: str) -> Path:
    """Where a trained model is kept: another setting, framework version or data set gives another name."""
    key = hashlib.sha256("\n".join([settings, version, MNIST_SHA256]).encode()).hexdigest()[:12]
    return cache_folder("models") / f"{name}-{key}.{suffix}"


def trained_on_texts(name: str, pipeline: Any, texts: Any, labels: Any) -> Any:
    """The same for texts: fitted on these and kept under a name that tells them, the settings and the version."""
    settings = [str(sorted(step.get_params().items(), key=str)) for _, step in pipeline.steps]
    data = hashlib.sha256("\n".join(texts.tolist()).encode()).hexdigest()
    file = model_file(name, f"{settings}{data}", sklearn.__version__, "skops")
    if not file.is_file():
        logger.info("training %s", name)
        _write(pipeline.fit(texts, labels), file)
    return skops_io().load(file, trusted=[])
