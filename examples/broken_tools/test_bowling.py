"""Tests of bowling.py."""

import unittest

from bowling import score


class BowlingTest(unittest.TestCase):
    def test_no_pins(self) -> None:
        self.assertEqual(score([0] * 20), 0)

    def test_ones(self) -> None:
        self.assertEqual(score([1] * 20), 20)

    def test_spare(self) -> None:
        self.assertEqual(score([4, 6, 5, *[0] * 17]), 20)

    def test_strike(self) -> None:
        self.assertEqual(score([10, 3, 4, *[0] * 16]), 24)

    def test_perfect(self) -> None:
        self.assertEqual(score([10] * 12), 300)
