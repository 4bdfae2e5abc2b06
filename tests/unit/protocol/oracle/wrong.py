"""Kinds of complaints, for a reader who counts what was lost, or what happened twice."""


class Twice(str):
    """Something happened once more than it may."""


class Lost(str):
    """Something that had to happen did not, or its reader learned something else."""


class Early(str):
    """Something happened before its time was over."""
