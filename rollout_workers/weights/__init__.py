"""New weights on their way into an engine: from Ray's objects, from files, or from the learner's memory."""
