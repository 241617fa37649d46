"""A plug-in that cannot be imported."""

raise RuntimeError("needs a driver\nthat is not here")
