"""Records, settings, protocols and errors that cross process borders, without torch and Ray."""
