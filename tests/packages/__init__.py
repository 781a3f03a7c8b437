"""Test suites of packages that stress processes, terminals and files, run inside of slots and outside of them."""
