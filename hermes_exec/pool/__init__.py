"""Pools: launching and ending sandboxes; acquiring, resetting and releasing slots."""
