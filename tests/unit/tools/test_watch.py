"""When a notice about a background process is due."""

from __future__ import annotations

from hermes_exec.tools.state.watch import GLOBAL_LIMIT, GLOBAL_WINDOW_S, RateLimit, Watch


def test_whole_lines_are_searched_whatever_the_chunks() -> None:
    watch = Watch("proc_1", "serve", False, ("réady",))
    watch.search(b"starting\nr\xc3", ended=False)
    assert watch.take() == ([], 0)
    watch.search(b"\xa9a\x1b[1mdy on 80\nnext", ended=False)
    assert watch.take() == (["réady on 80"], 1)
    watch.search(" is réady".encode(), ended=False)
    watch.search(b"", ended=True)
    assert watch.take() == (["next is réady"], 1)


def test_watch_finds_escape_sequence_in_two_pieces() -> None:
    watch = Watch("proc_1", "serve", False, ("READY",))
    for piece in (b"\x1b", b"[32", b"mRE\x1b[", b"1mADY\x1b]0;ti", b"tle\x07 now\n"):
        watch.search(piece, ended=False)
    assert watch.take() == (["READY now"], 1)


def test_watch_searches_long_unfinished_line() -> None:
    watch = Watch("proc_1", "serve", False, ("READY", "é"))
    watch.search(b"RE", ended=False)
    watch.search(b"ADY" + b"." * 200_000, ended=False)
    assert watch.take()[1] == 1
    watch.search(b"." * 200_000 + b"REA", ended=False)
    watch.search(b"DY" + b"." * 65_534, ended=False)
    watch.search(b"." * 10, ended=False)
    assert watch.take()[1] == 1
    watch.search("é\n".encode(), ended=False)
    assert watch.take()[1] == 1


def test_of_lines_that_match_the_first_are_held_and_all_counted() -> None:
    watch = Watch("proc_1", "serve", False, ("x",))
    for number in range(100):
        watch.search(b"%d x%s\n" % (number, b"x" * 1_000_000 if number == 7 else b""), ended=False)
    lines, matched = watch.take()
    assert (matched, len(lines), lines[19]) == (100, 20, "19 x")
    assert len(lines[7]) == 500


def test_one_notice_a_cooldown_and_an_end_after_three_strikes() -> None:
    watch = Watch("proc_1", "serve", False, ("x",))
    times = [0, 1, 2, 15, 16, 30, 31]
    assert [watch.admit(t) for t in times] == [True, False, False, True, False, True, False]
    assert watch.stop_if_overfull()
    assert (watch.patterns, watch.notify_on_complete) == ((), True)
    assert not watch.stop_if_overfull()


def test_a_quiet_time_forgives_strikes() -> None:
    watch = Watch("proc_1", "serve", False, ("x",))
    for start in (0, 100, 200, 300):
        assert watch.admit(start)
        assert not watch.admit(start + 1)
    assert not watch.stop_if_overfull()


def test_the_rate_over_all_processes() -> None:
    rate = RateLimit()
    assert [rate.admit(0) for _ in range(GLOBAL_LIMIT + 1)] == [True] * GLOBAL_LIMIT + [False]
    assert rate.admit(GLOBAL_WINDOW_S)
