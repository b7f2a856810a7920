"""What may end a run or an act."""


class ClusterError(Exception):
    """The run cannot go on; the text says why and what to do."""


class ActFailed(Exception):
    """Something that had to happen did not, or the other way round."""
