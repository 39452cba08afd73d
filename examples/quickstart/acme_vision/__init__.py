"""Two small models whose wheel carries them precompiled: see `acme_vision.demo`."""

__version__ = "1.0.0"
