"""Hours of mixed work on many slots: whatever a driver, its runners and the engine hold must not grow."""
