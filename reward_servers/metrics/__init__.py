"""The built-in metrics: name to class. One file each; a user's own is `package.module:Class`."""

METRICS: dict[str, str] = {
    "dates": "reward_servers.metrics.dates:Dates",
    "increasing_numbers": "reward_servers.metrics.increasing_numbers:IncreasingNumbers",
    "length": "reward_servers.metrics.length:Length",
    "rouge": "reward_servers.metrics.rouge:Rouge",
    "sentiment": "reward_servers.metrics.sentiment:Sentiment",
}
