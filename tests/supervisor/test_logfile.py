"""A log file with a bound."""

from __future__ import annotations

from pathlib import Path

from streamserve.supervisor.logfile import LogFile


def test_above_the_bound_a_new_file_begins_and_one_old_one_is_kept(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "a.log", max_bytes=10)
    for content in (b"111111\n", b"222222\n", b"333333\n"):
        log.write(content)
    log.close()
    log.write(b"late\n")
    assert (tmp_path / "logs" / "a.log").read_bytes() == b"333333\n"
    assert (tmp_path / "logs" / "a.log.1").read_bytes() == b"222222\n"
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_a_next_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for run in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "a.log")
        log.write(run)
        log.close()
    assert (tmp_path / "a.log").read_bytes() == b"first\nsecond\n"


def test_the_bound_counts_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 10)
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    log.write(b"y")
    log.close()
    assert (tmp_path / "a.log.1").stat().st_size == 10


def test_a_line_larger_than_the_bound_is_kept_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", max_bytes=4)
    log.write(b"much longer\n")
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"much longer\n"
