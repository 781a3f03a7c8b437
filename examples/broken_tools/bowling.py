"""The score of a game of ten-pin bowling."""


def score(rolls: list[int]) -> int:
    """Add up ten frames. A strike counts the next two rolls, and a spare the next one."""
    total = 0
    roll = 0
    for _ in range(10):
        if rolls[roll] == 10:
            total += 10 + rolls[roll + 1] + rolls[roll + 2]
            roll += 1
        elif rolls[roll] + rolls[roll + 1] == 10:
            total += 10 + rolls[roll + 1]
            roll += 2
        else:
            total += rolls[roll] + rolls[roll + 1]
            roll += 2
    return total
