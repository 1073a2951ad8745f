"""The report of a case as one plain object: gathered from what is stored, checked against it once more, then laid out and written."""
