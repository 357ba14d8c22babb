"""The error that reading a model raises for files it cannot use."""


class ModelFileError(ValueError):
    """A model's files are missing, foreign, cut short or do not fit. The message names file and remedy."""
