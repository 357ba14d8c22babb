"""The error that every tokenizer raises for input it cannot use."""


class TokenizerError(ValueError):
    """A tokenizer file is missing, foreign, cut short or incomplete. The message names file and remedy."""
