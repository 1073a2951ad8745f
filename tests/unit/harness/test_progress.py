"""Progress rewrites one line on a terminal, prints plain lines elsewhere, and survives a reader that went away."""

import io
import os
import pty

from opguard_harness.report.progress import Progress, Silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_only_lines_that_stay_are_printed():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.say("one\x1b[2J")
    progress.tick("10 %")
    progress.done()
    progress.say("two")
    assert stream.getvalue() == "one\\x1b[2J\ntwo\n"


def test_on_a_terminal_a_tick_is_replaced_and_leaves_nothing():
    stream = Terminal()
    progress = Progress(stream)
    progress.tick("10 %")
    progress.tick("9 %")
    progress.done()
    progress.say("end")
    assert stream.getvalue() == "10 %\r    \r9 %\r   \rend\n"


def test_on_a_real_terminal_no_line_break_is_printed_before_the_end():
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        progress = Progress(stream)
        progress.tick("x" * 200)
        progress.done()
        progress.say("end")
        shown = b""
        while not shown.endswith(b"end\r\n"):  # a terminal hands out what has come so far
            shown += os.read(reader, 65536)
    os.close(reader)
    assert shown.count(b"\n") == 1
    assert max(map(len, shown.split(b"\r"))) < 80


def test_a_reader_that_went_away_silences_progress():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", closefd=False) as stream:
        progress = Progress(stream)
        progress.say("x" * 100_000)
        progress.say("again")
        assert progress._closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    os.close(writer)


def test_tools_are_silent():
    stream = Terminal()
    progress = Silent(stream)
    progress.say("x")
    progress.tick("y")
    progress.done()
    assert stream.getvalue() == ""
