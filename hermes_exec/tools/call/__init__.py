"""The contract of one tool call: its arguments, its result, its limits, its failures."""
