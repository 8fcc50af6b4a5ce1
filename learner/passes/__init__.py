"""Passes of the models over a batch before its update, and passes that an update can leave out."""
