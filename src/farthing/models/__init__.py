"""From a checkpoint to a Program. `load.py` is the way in; a file an architecture."""
