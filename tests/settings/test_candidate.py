"""A model's section outside of a config: the same checks, and what the config's says is kept."""

from __future__ import annotations

import pytest

from streamserve.errors import ConfigError
from streamserve.settings import parse_settings
from streamserve.settings.candidate import checked_model
from tests.settings.digits import DIGITS

SPARE = """
[models.spare]
version = "3"
source = "a.skops"
trusted_types = ["a.B", "c.D"]
batching = "fixed"
batch_size = 7
isolation = "process"
cpu_cores = 1
options = { threads = 2 }
"""


def test_a_section_of_the_config_comes_through_as_it_was() -> None:
    settings = parse_settings(DIGITS + SPARE, "app.toml")
    for name, section in settings.models.items():
        assert checked_model(name, section.model_dump(exclude_unset=True)) == section


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("new", {}, "models.new.source is missing"),
        ("new", {"source": "a.joblib"}, "set trust_pickle = true"),
        ("new", {"source": "a:b", "batch_size": 3}, 'models.new.batch_size is only used with batching = "fixed"'),
        ("new", {"source": "a:b", "version": ""}, "models.new.version"),
        ("new", {"source": "a:b", "runtime": "torhc"}, 'did you mean "torch"?'),
        ("", {"source": "a:b"}, 'the name "" is not possible'),
    ],
)
def test_mistakes_are_told_without_a_file(name: str, table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_model(name, table)
    assert words in str(caught.value)
