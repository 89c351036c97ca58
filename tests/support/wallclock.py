"""A wall clock that tests set. The machine's own is left alone: a small library, loaded into every process of a run,
answers in its place. Real part "cc".
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int (*real)(clockid_t, struct timespec *);
static long set_by(const char *file) {
    char text[32] = "";
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    return length > 0 ? atol(text) : 0;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (status == 0 && id == CLOCK_REALTIME) at->tv_sec += set_by(getenv("CLOCK_SET_FILE"));
    return status;
}
"""


class WallClock:
    """`environment` is that of a run which reads it."""

    def __init__(self, folder: Path) -> None:
        (folder / "clock.c").write_text(SOURCE)
        library = folder / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "clock.c"), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        self._file = folder / "clock-set"
        self.environment: dict[str, str | None] = {"LD_PRELOAD": str(library), "CLOCK_SET_FILE": str(self._file)}

    def set(self, by_s: int) -> None:
        """From now on it differs from the machine's by so much."""
        new = self._file.with_suffix(".new")
        new.write_text(str(by_s))
        new.replace(self._file)
