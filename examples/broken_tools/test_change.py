"""Tests of change.py."""

import unittest

from change import fewest_coins


class ChangeTest(unittest.TestCase):
    def test_nothing(self) -> None:
        self.assertEqual(fewest_coins(0, [1, 5]), 0)

    def test_one_coin(self) -> None:
        self.assertEqual(fewest_coins(25, [1, 5, 25]), 1)

    def test_several(self) -> None:
        self.assertEqual(fewest_coins(63, [1, 5, 21, 25]), 3)

    def test_impossible(self) -> None:
        self.assertEqual(fewest_coins(3, [2]), -1)
