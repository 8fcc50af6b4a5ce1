"""Passes of the models over a batch before its update, and the ones that an update can leave out."""
