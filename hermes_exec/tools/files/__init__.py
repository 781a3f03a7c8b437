"""Reading, writing and searching files of the slot."""
