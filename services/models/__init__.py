"""Checks of a model folder before a library reads it. Needs no torch.

The gateway checks at submission. The learner and reward models check again before they load,
because a folder may be on their hosts only. `check_folder` is the entry point.
"""

from services.models.errors import UnusableFolder
from services.models.folder import ModelFolder, check_folder
from services.models.opening import open_below, open_inside

__all__ = ["ModelFolder", "UnusableFolder", "check_folder", "open_below", "open_inside"]
