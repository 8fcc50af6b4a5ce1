"""A plan as JSON, for programs."""

import json
from dataclasses import asdict
from typing import Any

from contracts.secrets.redaction import redact, without_secrets
from services.runs.claim import plain
from services.training.plan.plan import Plan


def as_json(plan: Plan) -> str:
    """Return the whole plan as a JSON object, without secrets.

    Example: `{"run_name": "imdb-ppo-seed0", "warnings": [], "prompt_as_read": "This film", …}`
    """
    deployed = plan.deployment
    whole = {
        "run_name": plan.settings.run_name,
        "folder": str(plan.folder.path),
        "iterations_done": plan.done,
        "num_parameters": plan.num_parameters,
        "is_estimated": plan.is_estimated,
        "machine": asdict(deployed.machine),
        "processes": [asdict(process) for process in plan.processes],
        "memory": [asdict(amount) for amount in plan.memory],
        "total_bytes": plan.total_bytes,
        "words": dict(plan.words),
        "sources": dict(plan.sources),
        "warnings": list(plan.warnings),
        "columns": {part: [asdict(column) for column in columns] for part, columns in plan.columns.items()},
        "settings": without_secrets(plain(plan.settings.resolved())),
    }
    text = redact(json.dumps(whole, ensure_ascii=False, default=str))
    # Don't mask the prompt: the user wants to see exactly what the model reads.
    first = next(iter(plan.prompts_as_read.values()), None)
    read: dict[str, Any] = {
        "prompt_as_read": None if first is None else first.text,
        "prompt_token_ids": [] if first is None else list(first.tokens),
    }
    if plan.settings.parts:
        read["prompts_as_read"] = {part: prompt.text for part, prompt in plan.prompts_as_read.items()}
    return json.dumps({**json.loads(text), **read}, ensure_ascii=False, indent=1)
