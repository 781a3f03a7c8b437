"""Tests of roman.py."""

import unittest

from roman import to_roman


class RomanTest(unittest.TestCase):
    def test_one(self) -> None:
        self.assertEqual(to_roman(1), "I")

    def test_eight(self) -> None:
        self.assertEqual(to_roman(8), "VIII")

    def test_tens(self) -> None:
        self.assertEqual([to_roman(10), to_roman(30), to_roman(90)], ["X", "XXX", "XC"])

    def test_forties(self) -> None:
        self.assertEqual([to_roman(40), to_roman(44), to_roman(49)], ["XL", "XLIV", "XLIX"])

    def test_years(self) -> None:
        self.assertEqual([to_roman(1998), to_roman(2026)], ["MCMXCVIII", "MMXXVI"])
