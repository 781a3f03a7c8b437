"""Sets of whole numbers as lists of intervals, whose end is not part of them."""


def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], min(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def count(intervals: list[tuple[int, int]]) -> int:
    """Count the numbers in all intervals together."""
    return sum(end - start for start, end in merge(intervals))
