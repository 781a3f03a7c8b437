"""The execute_code tool: Python in the slot whose functions call the tools of the same toolbox."""
