"""guardrun's own lines: prefixed, one line each, and never waited for."""

from __future__ import annotations

import os

import pytest

from guardrun.launcher.base.terminal_lines import print_line
from guardrun.supervisor.base.log import Terminal, format_line
from guardrun.supervisor.base.printable import make_harmless


def test_a_line_is_prefixed_and_stays_one_line() -> None:
    assert format_line("two\nlines\x1b[31m", "bad", has_colour=False) == "guardrun: two lines [31m\n"
    assert format_line("hung", "bad", has_colour=True) == "\x1b[1;31mguardrun:\x1b[0m hung\n"


def test_nothing_in_a_line_steers_the_terminal_or_turns_it_around(capfd: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x9b2J\u202eb\u2066c\x85d"
    for said in (format_line(evil, "info", has_colour=False), make_harmless(evil)):
        assert all(c.isprintable() or c == "\n" for c in said) and "a" in said and "d" in said, ascii(said)
    print_line(evil)
    assert capfd.readouterr().err == "guardrun: a\\x1b[2J\\x9b2J\\u202eb\\u2066c\\x85d\n"
    assert make_harmless("two\nlines\tof 文字 and 👩\u200d🔬") == "two\nlines\tof 文字 and 👩\u200d🔬"


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    try:
        while True:
            os.write(write_fd, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_fd, True)
    terminal = Terminal(write_fd)
    for number in range(1000):
        terminal.print_line(f"line {number}")
    terminal.close(timeout_s=0.05)
    # Let its thread go before the test ends.
    os.close(read_fd)
    assert terminal._thread is not None
    terminal._thread.join(60)
    assert not terminal._thread.is_alive()
    os.close(write_fd)


def test_lines_come_out_in_order_and_without_colour_where_there_is_no_terminal() -> None:
    read_fd, write_fd = os.pipe()
    terminal = Terminal(write_fd)
    terminal.print_line("one")
    terminal.print_line("two", "bad")
    terminal.close()
    os.close(write_fd)
    with os.fdopen(read_fd) as file:
        assert file.read() == "guardrun: one\nguardrun: two\n"
