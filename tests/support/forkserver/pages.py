"""Huge pages for a process that is forked often: a fork copies a page table's entries, one a page."""

from __future__ import annotations

import ctypes

HUGE_BYTES = 2 << 20
"""x86-64's, and arm64's with pages of 4 KiB; elsewhere the kernel refuses, and nothing is changed."""
MADV_COLLAPSE = 25
"""asm-generic/mman-common.h, Linux 6.1"""


def collapse() -> int:
    """Make huge pages of this process's own memory, where the kernel can; returns how many.

    A child that writes to one has it split again, and copies the small page alone.
    """
    libc = ctypes.CDLL(None)
    collapsed = 0
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split()
            if fields[1] != "rw-p" or fields[5:] not in ([], ["[heap]"]):
                continue
            begin, end = (int(address, 16) for address in fields[0].split("-"))
            for address in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
                pages = ctypes.c_void_p(address), ctypes.c_size_t(HUGE_BYTES)
                collapsed += libc.madvise(*pages, MADV_COLLAPSE) == 0
    return collapsed
