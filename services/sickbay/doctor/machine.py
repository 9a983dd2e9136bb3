"""Files of this machine that others should not read or write."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final

from .finding import Finding, Installation

_FILES: Final = {
    # setting: (what it is, how bad it is that others read it)
    "creds": ("a NATS credential", "bad"),
    "http_tokens": ("who may do what by HTTP", "warn"),
    "alerts": ("receivers of alerts", "warn"),
    "probes": ("targets to probe", "warn"),
    "policy": ("the policy", "ok"),
}


def files(installation: Installation) -> list[Finding]:
    """Each file that a setting names, and the embedded server's credentials."""
    settings = installation.settings
    named = {f"SICKBAY_{field.upper()}": (getattr(settings, field, ""), *what) for field, what in _FILES.items()}
    named["data folder"] = (str(settings.data_folder / "nats.url"), "the embedded server's credentials", "bad")
    findings = [
        finding
        for name, (path, what, level) in named.items()
        if path and (finding := _mode(name, Path(path).expanduser(), what, level))
    ]
    return findings or [Finding(what="files", level="ok", found="none is open to other users")]


def _mode(name: str, path: Path, what: str, read: Any) -> Finding | None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if name == "data folder":
            return None
        do = f"{name} names a file: make it, or correct the setting"
        return Finding(what="files", level="bad", found=f"{path}: {error.strerror or error}", do=do)
    others = stat.S_IMODE(mode) & 0o077
    if others & 0o022:
        said = f"{path} ({what}) can be written by other users: {stat.filemode(mode)}"
        return Finding(what="files", level="bad", found=said, do=f"chmod go-w {path}")
    if others & 0o044 and read != "ok":
        said = f"{path} ({what}) can be read by other users: {stat.filemode(mode)}"
        return Finding(what="files", level=read, found=said, do=f"chmod go= {path}")
    return None
