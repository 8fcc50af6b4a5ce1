"""The built-in rewards: name to class. One file each; a user's own is `package.module:Class`."""

REWARDS: dict[str, str] = {
    "dates": "reward_servers.rewards.dates:Dates",
    "increasing_numbers": "reward_servers.rewards.increasing_numbers:IncreasingNumbers",
    "length": "reward_servers.rewards.length:Length",
    "rouge": "reward_servers.rewards.rouge:Rouge",
    "sentiment": "reward_servers.rewards.sentiment:Sentiment",
}
