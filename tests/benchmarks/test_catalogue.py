from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.catalogue import LEGEND, PEERS, Peer, Place
from benchmarks.peers.settings import VARIABLE, PeerSettings
from benchmarks.tabular import read_options
from streamserve.settings import load_settings

_STREAMSERVE = [
    peer for peer in PEERS if peer.name in {"fused", "fused-plan", "three-hop", "single", "fused-16", "fused-plan-16"}
]


def _place(folder: Path, peer: Peer) -> Place:
    return Place(
        folder=folder,
        app=f"bench-001-{peer.name}",
        bootstrap_servers="127.0.0.1:9092",
        partitions=4,
        model_files=tuple(folder / f"tabular-{index:02d}.skops" for index in range(peer.models)),
        deadline_ms=1_000,
    )


def test_names_are_unique_and_explained() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    assert set(LEGEND) == set(names)


@pytest.mark.parametrize("peer", _STREAMSERVE, ids=lambda peer: peer.name)
def test_configurations_are_accepted_and_switch_the_cache_off(tmp_path: Path, peer: Peer) -> None:
    place = _place(tmp_path, peer)
    plan = peer.plan(place)
    settings = load_settings(tmp_path / "streamserve.toml")
    assert settings.app.name == place.app
    assert settings.fused is (len(plan.serve) == 1)
    assert [pool.cache_bytes for pool in settings.pools.values()] == [0]
    assert len(settings.models) == peer.models
    assert {model.batching for model in settings.models.values()} == {"none" if peer.name == "single" else "auto"}


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer not in _STREAMSERVE], ids=lambda peer: peer.name)
def test_peers_get_their_topics_and_settings(tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _place(tmp_path, peer)
    plan = peer.plan(place)
    monkeypatch.setenv(VARIABLE, plan.environment[VARIABLE])
    settings = PeerSettings.from_environment()
    assert {settings.requests_topic, settings.answers_topic} <= set(plan.topics)
    assert settings.models == list(place.model_files)
    assert settings.max_records == (64 if peer.name == "hand-16x64" else 500)


def test_quick_plays_one_short_run() -> None:
    options = read_options(["--quick", "--only", "echo,hand", "--seconds", "0.5"])
    assert [peer.name for peer in options.peers] == ["echo", "hand"]
    assert (options.runs, options.drain_runs, options.drain_s) == (1, 1, 0.5)
    assert read_options([]).runs == 5


@pytest.mark.parametrize("arguments", [["--only", "nobody"], ["--sections", "x"], ["--seconds", "0"]])
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(arguments)
    assert "error:" in capsys.readouterr().err
