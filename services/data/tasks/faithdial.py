"""Answer in a conversation, true to a piece of knowledge (FaithDial, Dziri et al. 2022)."""

from typing import ClassVar

from services.data.tasks.knowledge_dialogue import KnowledgeDialogue


class FaithDial(KnowledgeDialogue):
    """Task that reads FaithDial from the hub, or from files with its columns or its conversations."""

    task_name: ClassVar[str] = "faithdial"

    path: str = "McGill-NLP/FaithDial"
    revision: str | None = "refs/convert/parquet"  # the hub's copy in Parquet; the main branch is a script
