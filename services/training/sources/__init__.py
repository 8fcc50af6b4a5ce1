"""Sources of training prompts and annotated data, in an order that a resumed run continues exactly."""
