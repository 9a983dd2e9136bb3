"""A lock that the kernel gives back when its holder ends, however it ends (POSIX: Linux, macOS)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class FileLock:
    """An flock on a file that also says who holds it. Survives nothing: it is gone with the last process that has the
    file open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Try to get it, without waiting."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def fileno(self) -> int:
        """The open file, to be handed to a child that shall hold the lock too."""
        assert self._fd is not None
        return self._fd

    def write(self, pid: int) -> None:
        """Say who holds it."""
        os.ftruncate(self.fileno(), 0)
        os.pwrite(self.fileno(), b"%d\n" % pid, 0)

    def pid(self) -> int:
        """Who is said to hold it, 0 if nobody is."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._path.read_text())
        return 0

    def release(self) -> None:
        """Close the file; a child that has it open goes on holding the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
