"""Tests of intervals.py."""

import unittest

from intervals import count, merge


class IntervalsTest(unittest.TestCase):
    def test_none(self) -> None:
        self.assertEqual(merge([]), [])

    def test_apart(self) -> None:
        self.assertEqual(merge([(5, 6), (1, 3)]), [(1, 3), (5, 6)])

    def test_touching(self) -> None:
        self.assertEqual(merge([(1, 3), (3, 3), (3, 5)]), [(1, 5)])

    def test_overlapping(self) -> None:
        self.assertEqual(merge([(1, 4), (2, 6)]), [(1, 6)])

    def test_inside(self) -> None:
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])

    def test_count(self) -> None:
        self.assertEqual(count([(0, 5), (3, 8), (20, 21)]), 9)
