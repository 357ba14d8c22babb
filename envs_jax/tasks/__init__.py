"""Tasks of words and numbers: answers are free text, checked on device."""
