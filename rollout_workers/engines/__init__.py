"""Generation engines, by name; all behind the Protocol of `base.py`."""

ENGINES: dict[str, str] = {
    "vllm": "rollout_workers.engines.vllm_engine:VLLMEngine",
    "transformers": "rollout_workers.engines.transformers_engine:TransformersEngine",
}
