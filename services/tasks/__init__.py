"""The tasks, by name. One file each: its settings class is the task."""

TASKS: dict[str, str] = {
    "increasing_numbers": "services.tasks.increasing_numbers:IncreasingNumbers",
    "dates": "services.tasks.dates:Dates",
    "imdb": "services.tasks.imdb:Imdb",
    "prompts": "services.tasks.prompts:Prompts",
}
