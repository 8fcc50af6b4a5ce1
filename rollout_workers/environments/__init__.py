"""Built-in environments by name; a user's is `package.module:Class`."""

ENVIRONMENTS = {
    "single_turn": "rollout_workers.environments.single_turn:SingleTurn",
    "dialogue": "rollout_workers.environments.dialogue:Dialogue",
    "tools": "rollout_workers.environments.tools:Tools",
    "textworld": "rollout_workers.environments.textworld:TextWorld",
    "textarena": "rollout_workers.environments.textarena:TextArena",
    "gymnasium_text": "rollout_workers.environments.gymnasium_text:GymnasiumText",
    "openenv": "rollout_workers.environments.openenv:OpenEnv",
    "open_reward": "rollout_workers.environments.open_reward:OpenReward",
    "program": "rollout_workers.environments.program:Program",
    "verifiers": "rollout_workers.environments.verifiers:Verifiers",
}
