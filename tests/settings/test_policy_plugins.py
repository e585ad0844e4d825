"""Policies of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamserve.assembly import routes
from streamserve.settings import parse_settings
from streamserve.testing.policy_checks import POLICY_LAWS, PolicyLaw
from tests.effort import check_law
from tests.settings.custom_policy import MODULE, install
from tests.settings.digits import changed, refused


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greedy.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Greedy:\n"
        "    epsilon: float = 0.1\n"
        "    def __post_init__(self):\n"
        "        if not 0 <= self.epsilon <= 1:\n"
        "            raise ValueError('epsilon must be 0 to 1')\n"
    )
    info = tmp_path / "greedy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[streamserve.policies]\ngreedy = greedy:Greedy\nstatic = greedy:Greedy\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("plugin")
def test_a_policy_of_another_package_has_its_own_options() -> None:
    old = '{ name = "hedge", eta = 0.3, half_life_events = 350 }'
    good = parse_settings(changed(old, '{ name = "greedy", epsilon = 0.2 }'), "x")
    assert good.routes["digits"].policy.options() == {"epsilon": 0.2}
    told = refused(changed(old, '{ name = "greedy", epsilom = 0.2 }'))
    assert 'unknown key "epsilom" in policy greedy; allowed: name, epsilon; did you mean "epsilon"?' in told[0]
    told = refused(changed(old, '{ name = "greedy", epsilon = 2 }'))
    assert "routes.digits.policy: epsilon must be 0 to 1" in told[0]


@pytest.mark.usefixtures("plugin")
def test_a_policy_of_another_package_cannot_replace_ours() -> None:
    told = refused(changed('{ name = "hedge", eta = 0.3, half_life_events = 350 }', '{ name = "static", epsilon = 1 }'))
    assert 'unknown key "epsilon" in policy static' in told[0]


@pytest.mark.parametrize("law", POLICY_LAWS, ids=lambda law: law.__name__)
def test_a_short_policy_of_another_package_passes_the_suite(
    law: PolicyLaw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is short, its route is made from the config as one of ours, and it keeps every law."""
    install(tmp_path, monkeypatch)
    old = '{ name = "hedge", eta = 0.3, half_life_events = 350 }'
    settings = parse_settings(changed(old, '{ name = "softmax", heat = 0.1 }'), "x")
    route = next(route for route in routes(settings) if route.name == "digits")
    assert (route.policy.name, route.learns) == ("softmax", True)
    assert len([line for line in MODULE.splitlines() if line.strip()]) <= 35
    check_law(law, route.policy)


def test_the_page_shows_the_policy_that_passes() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-policy.md"
    assert MODULE in page.read_text(encoding="utf-8")
