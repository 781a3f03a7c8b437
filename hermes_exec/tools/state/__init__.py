"""What one Toolbox remembers from call to call."""
