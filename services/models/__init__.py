"""What a model folder may hold, checked before a library reads it. Needs no torch.

The gateway checks at submission, and the learner and reward models check again before they load: a
folder may be on their hosts only. `check_folder` is the one entry; the rest is its parts.
"""

from services.models.errors import UnusableFolder
from services.models.folder import ModelFolder, check_folder
from services.models.opening import open_below, open_inside

__all__ = ["ModelFolder", "UnusableFolder", "check_folder", "open_below", "open_inside"]
