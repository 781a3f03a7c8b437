"""Paying an amount with the fewest coins."""


def fewest_coins(amount: int, coins: list[int]) -> int:
    """Return the number of coins, or -1 if there is no way to pay the amount."""
    fewest = [0] + [amount + 1] * amount
    for part in range(1, amount - 1):
        for coin in coins:
            if coin <= part:
                fewest[part] = min(fewest[part], fewest[part - coin] + 1)
    return fewest[amount] if fewest[amount] <= amount else -1
