"""The examples that a stranger runs first: `streamserve up examples/X.toml --json` and a foreign client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamserve.datasets import split
from tests.acceptance.foreign import Foreign, foreign_client, oip
from tests.acceptance.running import PATIENCE, ROOT, STOP_S, serving

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

READY_S = 10.0
IMAGES = 300
MOST_WRONG = 0.12


@pytest.fixture(scope="module")
def images() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Digits that no model was trained on, in no order."""
    data = split()
    chosen = np.random.default_rng(5).permutation(len(data.test_labels))[:IMAGES]
    return data.test_images[chosen].astype(np.float64), data.test_labels[chosen]


def ask(client: Foreign, images: NDArray[np.float64]) -> NDArray[np.int64]:
    """Labels of the images, asked for as single ones and as a pair with inputs of two names."""
    headers = [("ss-deadline-ms", b"20000")]
    for number, image in enumerate(images[:-2]):
        name = ("image", "x", "pixels of one digit")[number % 3]
        client.send(oip(image.tolist(), [1, 784], id=f"image-{number}", name=name), tag=number, headers=headers)
    client.send(oip(images[-2:].ravel().tolist(), [2, 784]), tag="pair", headers=headers)
    answers = client.answers([*range(len(images) - 2), "pair"])
    for tag, answer in answers.items():
        (label, *_) = answer.json["outputs"]
        assert (label["name"], label["datatype"]) == ("label", "INT64")
        assert label["shape"] == [2 if tag == "pair" else 1]
        assert answer.outcome == "ok", answer.parameters
        assert answer.json["id"] == (client.ref(tag) if tag == "pair" else f"image-{tag}")
        assert answer.headers["ss-id"].decode() == answer.json["id"]
    single = [answers[number].label[0] for number in range(len(images) - 2)]
    return np.array(single + answers["pair"].label)


@pytest.mark.parametrize(
    ("example", "roles"),
    [
        ("digits.toml", ["worker-main-0", "learn-0"]),
        ("split.toml", ["worker-left-0", "worker-right-0", "aggregate-0", "learn-0"]),
    ],
)
def test_an_example_serves_images_sent_by_a_foreign_client(
    example: str, roles: list[str], images: tuple[NDArray[np.float64], NDArray[np.int64]], tmp_path: Path
) -> None:
    pixels, digits = images
    with serving(Path("examples") / example, cwd=ROOT, state=tmp_path) as up:
        ready_s = up.ready["ready_after_ms"] / 1000
        print(f"{example}: ready after {ready_s:.1f} s")
        assert ready_s <= READY_S * PATIENCE
        assert [role["name"] for role in up.ready["roles"]] == roles
        with foreign_client(up.ready) as client:
            wrong = float(np.mean(ask(client, pixels) != digits))
            client.hear(0.0)
            assert {len(records) for records in client.predictions.values()} == {1}
        print(f"{example}: {wrong:.1%} of {IMAGES} images wrong")
        assert wrong < MOST_WRONG
        stop_s = up.stop()
        print(f"{example}: stopped after {stop_s:.1f} s")
        assert stop_s <= STOP_S
