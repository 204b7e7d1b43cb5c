"""Where farthing keeps what it fetched and measured: where somebody says, or in the usual place.

A container, a service or a borrowed account may have no home, or one that cannot be written. Then a
folder of this user's among the temporary ones takes its place, and a warning says so.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from farthing.core import DownloadError

_log = logging.getLogger("farthing.files")


def cache_folder() -> Path:
    """`$FARTHING_CACHE`, else `$XDG_CACHE_HOME/farthing`, else `~/.cache/farthing`.

    Nothing is made where one of these can be used: the last can where it is there, or could be
    made. Raises `DownloadError` where no folder can be used.
    """
    own, shared = os.environ.get("FARTHING_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser()
        if shared:
            return Path(shared) / "farthing"
        home = Path.home()
    except RuntimeError as error:
        if own:
            raise DownloadError(
                f"FARTHING_CACHE is {own}, and there is no home folder ({error}): name a folder "
                "from the root"
            ) from None
        return _temporary("there is no home folder")
    usual = home / ".cache" / "farthing"
    problem = _problem(home, usual)
    return usual if problem is None else _temporary(problem)


def _problem(home: Path, folder: Path) -> str | None:
    """Why that folder of a home can be neither read nor made; None where it can."""
    try:
        if not home.is_dir():  # no program makes its user a home
            return f"there is no home folder {home}"
        there = next(each for each in (folder, *folder.parents) if each.exists())
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"
    wanted = os.R_OK | os.X_OK if there == folder else os.W_OK | os.X_OK
    return None if os.access(there, wanted) else f"{there} may not be used"


@cache
def _temporary(problem: str) -> Path:
    """A folder of this user's own among the temporary folders, made where it is not there."""
    folder = Path(tempfile.gettempdir()) / f"farthing-{os.getuid()}"
    advice = "set FARTHING_CACHE to a folder that you may write to"
    try:
        folder.mkdir(0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DownloadError(
            f"{problem}, and {folder} cannot be made instead ({error.strerror}): {advice}"
        ) from None
    # Whoever else may write there, or has put a link there, chooses what is loaded.
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not mine or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise DownloadError(f"{problem}, and {folder} is not this user's alone: {advice}")
    _log.warning(
        "%s: models and measurements are kept in %s, which the system may empty; %s",
        problem,
        folder,
        advice,
    )
    return folder
